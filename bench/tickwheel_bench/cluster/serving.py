"""What clients get from a cluster of two nodes, all on one machine: with one Kafka broker, and with three."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

from tickwheel_bench.daemon import Daemon
from tickwheel_bench.load import throughput
from tickwheel_bench.program import module_command

_MEASURED: Final = {
    "send_many": throughput.send_many,
    "send_single": throughput.send_single,
    "deliver": throughput.deliver,
}


def serving(directory: Path, scale: float, servers: str, copies: int = 1) -> dict[str, Any]:
    """The same as on one node, each in a cluster of its own, of whose log Kafka has so many copies."""
    figures: dict[str, Any] = {}
    for name, measure in _MEASURED.items():
        url = f"kafka://{servers}/bench-{name.replace('_', '-')}"
        make_cluster(url, copies)
        place = directory / name
        place.mkdir(parents=True)
        # Clients ask the other node, which follows this one and tells them its address.
        with Daemon(place / "owner", "--cluster", url, "--node", "1"):
            figures[name] = measure(place / "follower", scale, "--cluster", url, "--node", "2")
    return figures


def make_cluster(url: str, copies: int, *options: str) -> None:
    """`tickwheel cluster init`."""
    words = ["cluster", "init", url, "--replication-factor", str(copies), *options]
    subprocess.run(module_command("tickwheel", *words), check=True, capture_output=True)
