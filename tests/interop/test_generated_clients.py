"""Clients that others' generators make of docs/openapi.json, in Go and TypeScript, on a real broker and web process.

Generators and libraries come from the registries of their languages, so only ``make interop`` runs this.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.run.registries import Registries, needs, succeed

HERE: Final = Path(__file__).parent
DOCUMENT: Final = HERE.parents[1] / "docs" / "openapi.json"
OAPI_CODEGEN: Final = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"

pytestmark = pytest.mark.interop


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


@pytest.fixture(scope="module")
def registries() -> Registries:
    return Registries()


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
