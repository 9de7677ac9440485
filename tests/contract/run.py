"""The HTTP API against its own OpenAPI document: ``python -m tests.contract.run --schemathesis .venv-contract/bin/st``.

A broker and a web process are started, and Schemathesis makes requests from the document, right ones and wrong ones,
single ones and such that follow from each other's answers. Everything that comes back must be as the document says.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel_web.openapi import document
from tickwheel_web.shapes import EVENTS
from tickwheel_web.table import ENDPOINTS

CONFIG: Final = Path(__file__).with_name("schemathesis.toml")
SEED: Final = 17
EXAMPLES: Final = 4
_OPTIONS: Final = ("--continue-on-failure", "--request-timeout=30", "--warnings=off")
_SHORT_WAITS: Final = ["0s", "1ms"]


def impatient() -> dict[str, Any]:
    """The document, in which nothing waits for long."""
    found = document()
    wait = found["components"]["schemas"]["Receive"]["properties"]["wait"]
    wait.clear()
    wait["enum"] = _SHORT_WAITS
    for path in found["paths"].values():
        for operation in path.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                if "wait" in (content.get("example") or ()):
                    content["example"] = {**content["example"], "wait": _SHORT_WAITS[0]}
    return found


def main() -> int:
    """The exit code is that of Schemathesis."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schemathesis", default=".venv-contract/bin/st", help="The program.")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="Generated requests an endpoint.")
    chosen = parser.parse_args()
    program = str(Path(chosen.schemathesis).absolute())
    folder = Path(tempfile.mkdtemp(prefix="tickwheel-contract-"))
    try:
        return _run(folder, program, chosen.seed, chosen.examples)
    finally:
        shutil.rmtree(folder)


def _run(folder: Path, program: str, seed: int, examples: int) -> int:
    shutil.copy(CONFIG, folder)
    schema = folder / "openapi.json"
    schema.write_text(json.dumps(impatient()))
    # A stream does not end.
    streams = [f"--exclude-operation-id={row.name}" for row in ENDPOINTS if row.media_type == EVENTS]
    with Daemon(folder / "data") as daemon:
        web = Shell(folder, daemon.url).popen("web", "--port", "0", "--json")
        assert web.stdout is not None
        try:
            url = json.loads(web.stdout.readline())["url"]
            options = [f"--url={url}", f"--seed={seed}", f"--max-examples={examples}", *_OPTIONS, *streams]
            return subprocess.run([program, "run", str(schema), *options], cwd=folder, check=False).returncode
        finally:
            web.terminate()
            web.communicate(timeout=PATIENCE_S)


if __name__ == "__main__":
    sys.exit(main())
