"""What clients that misbehave cost the others: memory, lateness of a healthy topic meanwhile, and what is left."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import anyio

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.load.lateness import Recorder
from tickwheel_bench.load.messages import LEAD_MS, fill, schedule_evenly
from tickwheel_bench.program import Program, module_command

MIB: Final = 1 << 20
SECONDS: Final = 15
DUE_PER_S: Final = 200
SLOW_DISK_MS: Final = 100
IDLE_LEAD_MS: Final = 25_000
"""So many connections take their time to come; those that are there are what is measured."""
SLOW: Final = tuple(module_command("tickwheel_bench.load.slow_disk", SLOW_DISK_MS))
#: Scenario → how the broker is started, and its flags.
SCENARIOS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "flood": (SLOW, ()),
    "sleep": ((), ("--send-timeout", "5s")),
    "idle": ((), ("--max-connections", "12000", "--max-connections-per-address", "12000")),
    "trickle": ((), ("--handshake-timeout", "5s", "--frame-timeout", "5s")),
    "storm": ((), ()),
}


async def _watch(daemon: Daemon, seen: dict[str, Any]) -> None:
    """The most that the broker held at any time."""
    while True:
        seen["anon_bytes"] = max(seen["anon_bytes"], daemon.memory_bytes("RssAnon"))
        seen["files"] = max(seen["files"], len(os.listdir(f"/proc/{daemon.pid}/fd")))
        await anyio.sleep(0.2)


async def _suffer(client: Client, daemon: Daemon, name: str, seconds: int) -> dict[str, Any]:
    seen: dict[str, Any] = {"anon_bytes": 0, "files": 0}
    before_bytes = daemon.memory_bytes("RssAnon")
    if name == "sleep":
        await fill(client, "abused", 100_000, bytes(1_000))
    lead_ms = IDLE_LEAD_MS if name == "idle" else LEAD_MS
    count = seconds * DUE_PER_S
    await schedule_evenly(client, "healthy", count, DUE_PER_S, lead_ms)
    recorder = Recorder("healthy", count)
    words = module_command("tickwheel_bench.load.abuse", name, daemon.url, seconds + lead_ms // 1_000)
    with Program(words) as abuse:
        async with anyio.create_task_group() as watching:
            watching.start_soon(_watch, daemon, seen)
            with anyio.fail_after(seconds + 120):
                await recorder.run(client)
            said = await anyio.to_thread.run_sync(abuse.last)
            watching.cancel_scope.cancel()
    stats = await client.stats()
    return {
        "abuse": said,
        "memory_before_mib": round(before_bytes / MIB, 1),
        "memory_most_mib": round(seen["anon_bytes"] / MIB, 1),
        "open_files_most": seen["files"],
        "refusals": stats.refusals,
    } | recorder.figures()


async def _after(daemon: Daemon) -> dict[str, Any]:
    """A new client, without a restart."""
    begun_s = time.perf_counter()
    async with Client(daemon.url) as client, client.subscribe("after") as subscription:
        await client.send("after", b"still there")
        message = await subscription.receive(timeout=60)
        assert message is not None, "the broker did not recover"
        await message.ack(confirm=True)
        connections = (await client.stats()).connections
    return {
        "first_round_trip_after_ms": round((time.perf_counter() - begun_s) * 1_000, 1),
        "connections_after": connections,
        "memory_after_mib": round(daemon.memory_bytes("RssAnon") / MIB, 1),
    }


def scenario(directory: Path, name: str, seconds: int) -> dict[str, Any]:
    """One kind of abuse, on a broker of its own."""
    program, flags = SCENARIOS[name]
    with Daemon(directory, *flags, program=program) as daemon:
        figures = daemon.run(_suffer, daemon, name, seconds)
        return figures | anyio.run(_after, daemon)


def overload(directory: Path, scale: float) -> dict[str, Any]:
    """All of them, one after the other."""
    seconds = max(3, round(SECONDS * scale))
    return {name: scenario(directory / name, name, seconds) for name in SCENARIOS}
