"""Clients that others' generators make of docs/openapi.json, in Go and TypeScript, on a real broker and web process.

Generators and libraries come from the registries of their languages, so only ``make interop`` runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.integration.cli_harness import Shell
from tests.integration.daemon_harness import PATIENCE_S, Daemon

HERE: Final = Path(__file__).parent
DOCUMENT: Final = HERE.parents[1] / "docs" / "openapi.json"
OAPI_CODEGEN: Final = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
LIMIT_S: Final = 120
FETCHED_WITHIN_S: Final = 90
"""All that comes from registries, counted from the first test on."""

pytestmark = pytest.mark.skipif("TICKWHEEL_INTEROP" not in os.environ, reason="runs with make interop")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("interop")
    with Daemon(folder / "data") as daemon:
        web = Shell(folder, daemon.url).popen("web", "--port", "0", "--json")
        assert web.stdout is not None
        try:
            yield json.loads(web.stdout.readline())["url"]
        finally:
            web.terminate()
            web.communicate(timeout=PATIENCE_S)


class Registries:
    """Where what the programs need comes from. Without them there is no test."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + FETCHED_WITHIN_S

    def fetch(self, folder: Path, *command: str, environment: Mapping[str, str] | None = None) -> None:
        """Has a language's own tool get it."""
        left_s = max(1.0, self._deadline - time.monotonic())
        try:
            done = run(folder, *command, environment=environment, limit_s=left_s)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{' '.join(command)}: the registry did not answer in time")
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def registries() -> Registries:
    return Registries()


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not on this machine")
    return found


def succeed(folder: Path, *command: str) -> str:
    done = run(folder, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(
    folder: Path,
    *command: str,
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def test_a_client_in_go(url: str, registries: Registries, tmp_path: Path) -> None:
    go = needs("go")
    folder = shutil.copytree(HERE / "go", tmp_path / "go")
    (folder / "api").mkdir()
    programs = tmp_path / "programs"
    registries.fetch(folder, go, "mod", "download")
    registries.fetch(folder, go, "install", OAPI_CODEGEN, environment={"GOBIN": str(programs)})
    succeed(folder, str(programs / "oapi-codegen"), "-config", "oapi-codegen.yaml", str(DOCUMENT))
    succeed(folder, go, "vet", ".")
    assert succeed(folder, go, "run", ".", url).startswith("acked ")


def test_a_client_in_typescript(url: str, registries: Registries, tmp_path: Path) -> None:
    node, npm = needs("node"), needs("npm")
    folder = shutil.copytree(HERE / "typescript", tmp_path / "typescript")
    registries.fetch(folder, npm, "install", "--no-package-lock", "--no-audit", "--no-fund")
    programs = folder / "node_modules" / ".bin"
    options = ("--default-non-nullable", "false", "--output", "api.d.ts")
    succeed(folder, str(programs / "openapi-typescript"), str(DOCUMENT), *options)
    succeed(folder, str(programs / "tsc"), "--project", ".")
    assert succeed(folder, node, "out/main.js", url).startswith("acked ")
