"""The identity that a connection has, and what that allows."""

from __future__ import annotations

from typing import Final

from tickwheel.protocol.grants import Grant, Granted


class Identity(Granted):
    """Who a connection is, and what that allows. `grants` None: everything."""

    def __init__(self, login: str, name: str, grants: frozenset[Grant] | None, proof: str = "") -> None:
        """`login` is the token's id, or says how else it came in; `name` is for people; `proof` says which of the
        token's hashes counted."""
        super().__init__(grants)
        self.login = login
        self.name = name
        self.proof = proof


NOBODY: Final = Identity("none", "nobody", frozenset())
"""Whose connection is about to be closed."""

ANYONE: Final = Identity("anonymous", "anybody", None)
"""As long as there are no tokens, everybody who can connect may do everything."""

OWNER: Final = Identity("owner", "the broker's own user", None)
"""Came by a Unix socket, as the user who owns the broker's files, or root: may read and change these anyway."""
