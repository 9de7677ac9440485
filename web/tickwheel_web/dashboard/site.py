"""The pages' routes, and what all pages share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from tickwheel.sharing.clients import Clients
from tickwheel_web.dashboard.assets import Assets
from tickwheel_web.dashboard.environment import Templates
from tickwheel_web.dashboard.figures.history import History
from tickwheel_web.dashboard.figures.recent import Recent
from tickwheel_web.dashboard.figures.sampling import Sampling
from tickwheel_web.dashboard.login.door import Door
from tickwheel_web.dashboard.logins import Logins
from tickwheel_web.dashboard.notices import Notices
from tickwheel_web.dashboard.page import Hiding, Page, Site
from tickwheel_web.dashboard.place import Place, Refusing
from tickwheel_web.dashboard.table import PAGES
from tickwheel_web.ending import Ending
from tickwheel_web.endpoints import Parts
from tickwheel_web.limits import Limit, Limits
from tickwheel_web.middleware.guard import Guard
from tickwheel_web.middleware.people import People

MAX_TABS: Final = 256
MAX_TABS_PER_TOKEN: Final = 32
MAX_QUERIES: Final = 16
MAX_QUERIES_PER_TOKEN: Final = 4


class Dashboard:
    """All of it: what ``application.make`` puts beside the API."""

    def __init__(
        self,
        *,
        clients: Clients,
        limits: Limits,
        ending: Ending,
        guard: Guard,
        hiding: Hiding,
        is_read_only: bool,
        threshold_s: float,
        people: People | None = None,
    ) -> None:
        """``threshold_s``: what is later is late. ``people``: those whom a proxy in front may let in."""
        self._clients = clients
        self._limits = limits
        self._people = people
        self._assets = Assets()
        self._pages = [page for page in PAGES if not (page.shows_all and hiding.hides)]
        logins, history = Logins(), History()
        self._sampling = Sampling(clients, logins, history)
        self._site = Site(
            templates=Templates(self._assets),
            clients=clients,
            logins=logins,
            notices=Notices(),
            history=history,
            recent=Recent(),
            tabs=Limit("tabs", per_key=MAX_TABS_PER_TOKEN, in_all=MAX_TABS),
            queries=Limit("queries", per_key=MAX_QUERIES_PER_TOKEN, in_all=MAX_QUERIES),
            ending=ending,
            hiding=hiding,
            is_read_only=is_read_only,
            threshold_s=threshold_s,
            menu=[page for page in self._pages if page.entry is not None],
            paths=frozenset(page.path for page in self._pages),
        )
        self._refusing = Refusing(self._site, guard)
        self._door = Door(clients, self._site.templates, logins)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Inside this block samples of the figures are taken, and at its end no more."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._sampling.run)
            try:
                yield
            finally:
                group.cancel_scope.cancel()

    def compile(self) -> None:
        """All templates, before somebody wants a page."""
        self._site.templates.compile()

    def routes(self) -> list[BaseRoute]:
        """Of all pages, and of what belongs to them."""
        rows: dict[str, list[Page]] = {}
        for page in self._pages:
            rows.setdefault(page.path, []).append(page)
        shared = self._clients, self._limits, self._site, self._refusing, self._sampling, self._people
        guarded = self._refusing.guarded
        return [
            *(
                Parts(
                    path,
                    Place(rows_of, *shared),
                    methods=[row.method for row in rows_of],
                )
                for path, rows_of in rows.items()
            ),
            Route("/login", guarded(self._door.show), methods=["GET"]),
            Route("/login", guarded(self._door.come_in), methods=["POST"]),
            Route("/logout", guarded(self._door.leave), methods=["POST"]),
            Route("/static/{path:path}", self._assets.serve, methods=["GET"]),
            Route("/robots.txt", _robots, methods=["GET"]),
        ]

    def missing(self, request: Request) -> Response:
        """For a path that is none of ours."""
        return self._refusing.missing(request)


async def _robots(request: Request) -> Response:
    return PlainTextResponse("User-agent: *\nDisallow: /\n")
