"""What the token of who looks may do, so that pages show no button that would be refused."""

from __future__ import annotations

from collections.abc import Sequence

from tickwheel.protocol.grants import PERMISSIONS, Granted, parse_grants


class Rights:
    """As the broker told it when the client connected. The broker judges each request all the same.

    >>> rights = Rights(["query:*", "publish:orders.*"])
    >>> rights.may("publish:orders.new"), rights.may("admin:* or query:*"), rights.may("any on mails")
    (True, True, True)
    >>> rights.may("admin:orders.new"), Rights(["publish:orders"]).may("any on mails")
    (False, False)
    >>> Rights(["all:*"], is_read_only=True).may("publish:orders")
    False
    """

    def __init__(self, grants: Sequence[str] | None, *, is_read_only: bool = False) -> None:
        """``grants``: as ``Client.grants`` has them; None: everything, as far as is known."""
        self._granted = Granted(None if grants is None else parse_grants(grants))
        self._is_read_only = is_read_only

    def sees(self, right: str) -> bool:
        """Whether something may be looked at. A right is written as in the tables of endpoints and pages."""
        return right == "any" or any(self._has(one) for one in right.split(" or "))

    def may(self, right: str) -> bool:
        """Whether something may be done: never where nothing may be changed, but for looking."""
        if self._is_read_only and not right.startswith(("query:", "any")):
            return False
        return self.sees(right)

    def may_somewhere(self, permission: str) -> bool:
        """Whether something may be done with any topic at all.

        >>> Rights(["publish:orders.*"]).may_somewhere("publish"), Rights(["query:*"]).may_somewhere("publish")
        (True, False)
        """
        grants = self._granted.grants
        is_granted = grants is None or any(grant.permission == permission for grant in grants)
        return is_granted and not self._is_read_only

    def _has(self, right: str) -> bool:
        if right.startswith("any on "):
            return self._granted.sees(right.removeprefix("any on "))
        permission, _, topic = right.partition(":")
        assert permission in PERMISSIONS, right
        return (
            self._granted.may_everywhere(permission) if topic == "*" else self._granted.may(permission, topic)
        )
