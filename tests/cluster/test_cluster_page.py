"""The commands of docs/how-to/cluster.md, run as they are written, one right after the other: only the ports
are others, and Kafka is fetched."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

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
    script = "\n".join(
        [
            "set -e",
            kafka_runs,
            nodes_run,
            used,
        ]
    )
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, out + err
        assert "cluster     try, log " in out
        assert "owns nothing" in out
        assert "call Ada" in out
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: Kafka and the nodes
