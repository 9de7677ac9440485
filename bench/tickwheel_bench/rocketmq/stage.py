"""Where a figure is measured: a server, programs that are its clients, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tickwheel_bench.program import Program
from tickwheel_bench.rocketmq.clients import Programs
from tickwheel_bench.rocketmq.servers import Server
from tickwheel_bench.usage import total_us, us_a_message, used_s

CLIENT: Final = "client"


class Measured(NamedTuple):
    """What a load has said after it was warm, and what all processes cost meanwhile."""

    lines: list[dict[str, Any]]
    cpu_us: dict[str, float]
    """A message."""

    @property
    def messages(self) -> int:
        """All of them."""
        return sum(line["messages"] for line in self.lines)

    def figures(self) -> dict[str, Any]:
        """What is shown of any load."""
        last = self.lines[-1]
        return {
            "messages": self.messages,
            "per_s": round(self.messages / sum(line["seconds"] for line in self.lines)),
            "servers_us": total_us(self.cpu_us, CLIENT),
            "cpu_us": self.cpu_us,
            **{name: last[name] for name in ("answered_ms", "late_ms", "failed", "twice") if name in last},
        }


class Stage(NamedTuple):
    """See the module."""

    server: Server
    programs: Programs
    scale: float
    folder: Path

    def size(self, whole: int, least: int = 1) -> int:
        """Its part at this scale."""
        return max(least, int(whole * self.scale))

    def run(self, program: Sequence[str], mode: str, **options: object) -> Program:
        """A client that has begun."""
        words = [f"{name}={value}" for name, value in options.items()]
        command = [*program, self.server.address, mode, *words]
        return Program(command, self.programs.environment)

    def said(self, program: Sequence[str], mode: str, **options: object) -> list[dict[str, Any]]:
        """All that it says, when it has ended."""
        with self.run(program, mode, **options) as run:
            return list(run.lines())

    def measured(self, program: Sequence[str], mode: str, *, warm_lines: int, **options: object) -> Measured:
        """`warm_lines`: so many come before it is warm."""
        with self.run(program, mode, **options) as run:
            return measured(run, self.server, warm_lines)


def measured(run: Program, server: Server, warm_lines: int) -> Measured:
    """Of a load that has just begun."""
    processes = {**server.processes, CLIENT: [run.pid]}
    before = after = used_s(processes)
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(run.lines(), start=1):
        after = used_s(processes)  # also of one that has ended: it is waited for when there are no more lines
        if number <= warm_lines:
            before = after
        else:
            lines.append(line)
    if not lines:
        raise RuntimeError("it has said nothing")
    return Measured(lines, us_a_message(before, after, sum(line["messages"] for line in lines)))
