"""Where data of a run goes while it lasts, and its report afterwards."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


@contextmanager
def scratch(prefix: str, directory: Path | None) -> Iterator[Path]:
    """A folder in `directory`, or where temporary folders are."""
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=directory)).absolute()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def write(report: Mapping[str, Any], out: Path, name: str, *, indent: int = 2) -> None:
    """Writes a file of JSON into the folder `out`, and says so."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps(report, indent=indent) + "\n")
    click.echo(f"written to {path}")
