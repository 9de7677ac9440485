"""What a gateway with TLS and access keys is given, and the broker with tokens behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.clients.certificates import Files
from tests.support.processes.cli_harness import Shell
from tickwheel_gateway.clients.credentials import Pair


class Guarded:
    """A token for each name in `grants`, and a pair of keys for each token. The broker's data is below `folder`."""

    def __init__(self, folder: Path, grants: Mapping[str, str]) -> None:
        self.data = folder / "data"
        self.shell = Shell(folder)
        self.file = folder / "credentials"
        self.tokens = {
            name: self.shell.json("tokens", "create", name, "--grant", grant, "--data", str(self.data))[
                "token"
            ]
            for name, grant in grants.items()
        }
        self.pairs = {name: self._add(name) for name in self.tokens}
        files = Files(folder / "tls")
        self.ca_path = files.ca_path
        self.flags = (
            *("--credentials-file", str(self.file)),
            *("--tls-certificate", files.certificate_path, "--tls-key", files.key_path),
        )

    def _add(self, name: str) -> Pair:
        """A pair that stands for a token."""
        token_file = self.shell.directory / f"{name}.token"
        token_file.write_text(self.tokens[name] + "\n")
        words = ("credentials", "add", name, "--token-file", str(token_file), "--file", str(self.file))
        told = self.shell.json("gateway", *words)
        return Pair(told["access_key"], told["secret_key"])
