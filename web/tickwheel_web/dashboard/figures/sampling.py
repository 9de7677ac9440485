"""Takes samples of the figures, with the token of somebody who is logged in and may look at them."""

from __future__ import annotations

import logging
from typing import Final

import anyio

from tickwheel.errors import ConnectionDenied, Forbidden, TickwheelError
from tickwheel.sharing.clients import Clients
from tickwheel_web.dashboard.figures.history import EVERY_S, History
from tickwheel_web.dashboard.logins import Login, Logins

_LOCAL: Final = "127.0.0.1"

_log = logging.getLogger("tickwheel.web")


class Sampling:
    """This process has no token of its own, so there are samples from the first page on that somebody looks at, for as
    long as he is logged in; where the broker wants no token, for as long as the process runs."""

    def __init__(self, clients: Clients, logins: Logins, history: History) -> None:
        self._clients = clients
        self._logins = logins
        self._history = history
        self._begun = anyio.Event()
        self._needs_no_token = False

    def begin(self, login: Login | None, *, may_watch: bool) -> None:
        """Somebody has looked at a page, and may look at the figures or not; None: without a token."""
        if login is not None:
            login.may_watch = may_watch
        elif may_watch:
            self._needs_no_token = True
        if may_watch:
            self._begun.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._begun.wait()
        while True:
            await self._sample()
            await anyio.sleep(EVERY_S)

    async def _sample(self) -> None:
        for login in self._who():
            token, address = ("", _LOCAL) if login is None else (login.token, login.address)
            try:
                async with self._clients.client(token, address) as client:
                    self._history.add(await client.figures())
                return
            except (Forbidden, ConnectionDenied) as error:  # the next one may; this one is not asked again
                _log.debug("no sample of the figures: %s", error)
                if login is None:
                    self._needs_no_token = False
                else:
                    login.may_watch = False
            except TickwheelError as error:  # while the broker is away there is a gap
                _log.debug("no sample of the figures: %s", error)
                return
            except Exception:
                _log.exception("a sample of the figures met a defect")
                return

    def _who(self) -> list[Login | None]:
        """Who may look, None for without a token; the last one that was used first."""
        nobody = [None] if self._needs_no_token else []
        return [*nobody, *(login for login in self._logins if login.may_watch)]
