"""`h2spec`, which tries what HTTP/2 asks of a server, on both libraries.

``make interop`` runs it, and gets the program from the registry of Go's modules where the machine has none.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.support.run.registries import Registries, needs, run
from tests.unit.gateway.transport.conftest import require
from tests.unit.gateway.transport.test_grpcio import Running
from tickwheel_gateway.transport.stacks import VARIABLE

pytestmark = pytest.mark.interop

H2SPEC: Final = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"

NO_BODY: Final = {
    "2: Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
    "3: Sends a PRIORITY frame on half-closed (remote) stream",
    "1: Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
}
"""What h2spec asks is no gRPC: it is answered at once, without DATA, and no stream stays open."""
PASSED_OVER: Final = {
    "8: closed: Sends a DATA frame after sending RST_STREAM frame",
    "9: closed: Sends a HEADERS frame after sending RST_STREAM frame",
    "11: closed: Sends a DATA frame",
    "12: closed: Sends a HEADERS frame",
    "2: Sends stream identifier that is numerically smaller than previous",
}
"""nghttp2 keeps no closed streams here, and passes over what comes on them: it costs nothing, and keeps nothing."""
DEVIATIONS: Final = {"h2": NO_BODY, "nghttp2": NO_BODY | PASSED_OVER}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    if (found := shutil.which("h2spec")) is not None:
        return found
    folder = tmp_path_factory.mktemp("h2spec")
    Registries().fetch(folder, needs("go"), "install", H2SPEC, environment={"GOBIN": str(folder)})
    return str(folder / "h2spec")


@pytest.mark.parametrize("name", ["nghttp2", "h2"])
def test_what_http2_asks_of_a_server(
    name: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(name)
    monkeypatch.setenv(VARIABLE, name)
    with Running() as running:
        done = run(tmp_path, program, "-h", "127.0.0.1", "-p", str(running.port), "-o", "5")
    _, _, failures = done.stdout.partition("Failures:")
    assert "145 tests" in done.stdout
    assert set(re.findall(r"× (\d+: .*)", failures)) == DEVIATIONS[name]
