"""The commands of docs/how-to/cluster.md, run as they are written: only the ports are others, and Kafka is fetched."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.clients.http_client import get
from tests.support.cluster.kafka import needs_kafka
from tickwheel_bench.cluster.kafka import LIBS
from tickwheel_bench.processes import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "cluster.md"
PATIENCE_S = 90.0
PORTS = ("9092", "9093", "7411", "7412", "7421", "7422")


@needs_kafka
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "build" / "kafka").mkdir(parents=True)
    (tmp_path / "build" / "kafka" / "libs").symlink_to(LIBS)
    ports = {port: str(free_port()) for port in PORTS}
    blocks = re.findall(r"^```shell\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    kafka_runs, nodes_run, used = (
        re.sub("|".join(PORTS), lambda found: ports[found[0]], block).replace("make kafka\n", "")
        for block in blocks
    )
    log = tmp_path / "waiting.log"
    script = "\n".join(
        [
            "set -e",
            kafka_runs,
            f"until_s=$((SECONDS + {PATIENCE_S:.0f}))",
            f"until echo > /dev/tcp/127.0.0.1/{ports['9092']}; do sleep 0.1; ((SECONDS < until_s)); done 2> {log}",
            nodes_run,
            "echo up; read go",
            used,
        ]
    )
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "up\n":
            assert line, process.communicate(timeout=PATIENCE_S)[1]
        wait_joined(ports["7421"])
        wait_joined(ports["7422"])
        out, err = process.communicate("go\n", timeout=PATIENCE_S)
        assert process.returncode == 0, out + err
        assert "cluster     try, log " in out
        assert "owns nothing" in out
        assert "call Ada" in out
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: Kafka and the nodes


def wait_joined(port: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            if '"has_joined":true' in get(f"http://127.0.0.1:{port}/readyz").text:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("a node has not joined")
