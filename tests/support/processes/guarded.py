"""Brokers with tokens, and what each token may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon

GRANTS = {
    "all": ("all:*",),
    "publisher": ("publish:orders*",),
    "worker": ("consume:orders*",),
    "owner": ("admin:orders*",),
    "watcher": ("query:orders*",),
    "monitor": ("query:*",),
    "operator": ("admin:*",),
    "pusher": ("push:orders*", "consume:orders*"),
    "stranger": ("publish:other", "consume:other", "query:other", "admin:other"),
}


@dataclass(frozen=True)
class Guarded:
    """A broker with tokens."""

    daemon: Daemon
    tokens: dict[str, str]


def guarding(folder: Path) -> Iterator[Guarded]:
    """A running broker with a token of each kind."""
    shell, data = Shell(folder), folder / "data"
    tokens = {}
    for name, grants in GRANTS.items():
        options = [word for grant in grants for word in ("--grant", grant)]
        tokens[name] = str(shell.json("tokens", "create", name, *options, "--data", str(data))["token"])
    with Daemon(data) as daemon:
        yield Guarded(daemon, tokens)


def may(who: str, right: str, topic: str) -> bool:
    """Whether one of the tokens above has what a row says that it takes."""
    if right == "any":
        return True
    grants = [grant.split(":") for grant in GRANTS[who]]
    if right == "any on {topic}":
        return any(fnmatchcase(topic, pattern) for _, pattern in grants)
    needed = [one.partition(":") for one in right.partition(",")[0].split(" or ")]
    return any(
        of in (permission, "all") and (pattern == "*" if where == "*" else fnmatchcase(topic, pattern))
        for permission, _, where in needed
        for of, pattern in grants
    )


class Place:
    """A data directory whose tokens are managed by the command line."""

    def __init__(self, tmp_path: Path) -> None:
        self.data = tmp_path / "data"
        self.shell = Shell(tmp_path)
        self.audit = tmp_path / "audit.jsonl"

    def tokens(self, *arguments: str) -> Any:
        """What a command about tokens prints."""
        done = self.shell.run("tokens", *arguments, "--json", "--data", str(self.data))
        return json.loads(done.stdout)

    def create(self, name: str, *grants: str, expires_in: str = "") -> str:
        """A new token."""
        options = [part for grant in grants for part in ("--grant", grant)]
        options += ["--expires-in", expires_in] if expires_in else []
        return str(self.tokens("create", name, *options)["token"])

    def daemon(self, **settings: Any) -> Daemon:
        """The broker on the directory, which keeps an audit log."""
        return Daemon(self.data, audit_log=str(self.audit), **settings)

    def audited(self) -> list[dict[str, Any]]:
        """All entries of the audit log."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    def audited_as(self, event: str, outcome: str) -> list[dict[str, Any]]:
        """Its entries of one kind."""
        return [e for e in self.audited() if (e["event"], e["outcome"]) == (event, outcome)]
