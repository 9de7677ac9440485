"""How a request for a page is answered: who asks, what he may, and what went wrong, in words."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from tickwheel.errors import TickwheelError
from tickwheel.sharing.clients import Clients
from tickwheel_web import reading
from tickwheel_web.dashboard.figures.sampling import Sampling
from tickwheel_web.dashboard.guard import HEADERS
from tickwheel_web.dashboard.logins import Login, cookie_of
from tickwheel_web.dashboard.page import NOTICE, Page, Site, Viewed, is_refresh
from tickwheel_web.dashboard.rights import Rights
from tickwheel_web.limits import Limits
from tickwheel_web.middleware.guard import Guard
from tickwheel_web.middleware.people import People
from tickwheel_web.middleware.person import PERSON
from tickwheel_web.problems import Refused, problem_of
from tickwheel_web.shapes import text_of

FORM: Final = "application/x-www-form-urlencoded"
MAX_FIELDS: Final = 10_000

STALE: Final = "tw:stale"
"""The event in the browser that says that a part of a page could not be loaded anew."""

_NOT_FOUND: Final = Refused(404, "no_such_page", "There is no such page.")

_log = logging.getLogger("tickwheel.web")

Answering = Callable[[Request], Awaitable[Response]]


class Refusing:
    """Guards pages, and says what is wrong with a request in a page of its own."""

    def __init__(self, site: Site, guard: Guard) -> None:
        self._site = site
        self._guard = guard

    def check(self, request: Request) -> None:
        """Raises Refused: it is for another host, or a form of another site."""
        self._guard.check_page(request)

    def guarded(self, answering: Answering) -> Answering:
        """The same, for requests that are checked before."""

        async def answer(request: Request) -> Response:
            try:
                self.check(request)
                return await answering(request)
            except (Refused, TickwheelError) as error:
                return self.page(request, error)

        return answer

    def missing(self, request: Request) -> Response:
        """For a path that no page has."""
        try:
            self.check(request)
        except Refused as error:
            return self.page(request, error)
        return self.page(request, _NOT_FOUND)

    def page(
        self, request: Request, error: TickwheelError | Refused, viewed: Viewed | None = None
    ) -> Response:
        """What went wrong; with the menu, where it is known who asks."""
        problem = problem_of(error)
        if is_refresh(request):  # what is there is better than a problem in its place
            return Response(status_code=204, headers={**HEADERS, "HX-Trigger": STALE})
        if viewed is not None:
            return viewed.page("problem.html", status=problem.status, problem=problem)
        return self._site.templates.page(request, "problem_alone.html", problem.status, problem=problem)


class Place:
    """One path: its methods, and how a request is answered."""

    def __init__(
        self,
        rows: Sequence[Page],
        clients: Clients,
        limits: Limits,
        site: Site,
        refusing: Refusing,
        sampling: Sampling,
        people: People | None,
    ) -> None:
        self._rows = {row.method: row for row in rows}
        self._clients = clients
        self._limits = limits
        self._site = site
        self._refusing = refusing
        self._sampling = sampling
        self._people = people

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it. Every failure is a page; what is a defect is logged besides."""
        request = Request(scope, receive, send)
        is_answered = False
        viewed: Viewed | None = None
        number = cookie_of(request)
        try:
            self._refusing.check(request)
            for name, part in request.path_params.items():
                text_of(str(part), name, f"/{{{name}}}")  # what is no text could not be written into a page
            row = self._rows["POST" if request.method == "POST" else "GET"]
            login = self._login(request, number)
            token = "" if login is None else login.token
            address = reading.address(request)
            form = await self._form(request) if request.method == "POST" else {}
            async with self._clients.client(token, address) as client:  # until the answer is written
                rights = Rights(client.grants, is_read_only=self._site.is_read_only)
                self._sampling.begin(login, may_watch=rights.sees("query:*"))
                viewed = Viewed(
                    request=request,
                    row=row,
                    client=client,
                    rights=rights,
                    query=None,
                    form=form,
                    caller=token or address,
                    token=token,
                    address=address,
                    login=login,
                    site=self._site,
                )
                viewed = replace(viewed, query=_query(row, request))
                response = await row.showing(viewed)
                is_answered = True
                await response(scope, receive, send)
        except (Refused, TickwheelError) as error:
            if is_answered:
                raise
            if problem_of(error).status == 401 and PERSON not in request.scope:
                self._site.logins.end(number)
                await _to_login(request)(scope, receive, send)
                return
            await self._refusing.page(request, error, viewed)(scope, receive, send)
        except Exception:
            if is_answered:
                raise
            _log.exception("a page met a defect")
            refused = Refused(
                500, "internal", "This page met a defect of its own. The log of the web process has it."
            )
            await self._refusing.page(request, refused, viewed)(scope, receive, send)

    def _login(self, request: Request, number: str) -> Login | None:
        """Of the person whom a proxy names, or by the cookie. Raises Refused (403)."""
        person = request.scope.get(PERSON)
        if person is None or self._people is None:
            return self._site.logins.find(number)
        name = reading.header_text(person)
        return self._site.logins.of_person(name, self._people.token_of(name), reading.address(request))

    async def _form(self, request: Request) -> Mapping[str, Sequence[str]]:
        """Raises Refused (400, 408, 413, 415)."""
        reading.need_media_type(request, [FORM])
        body = await reading.read_body(request, self._limits.request_bytes, self._limits.request_s)
        try:
            pairs = parse_qsl(
                body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
            )
        except ValueError as error:
            raise Refused(400, "bad_form", f"The form cannot be read: {error}.") from None
        found: dict[str, list[str]] = {}
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        return found


def _query(row: Page, request: Request) -> msgspec.Struct:
    """The query parameters, without the one of notices. Fields of forms that were left empty were not given."""
    given = {name: value for name, value in request.query_params.items() if name != NOTICE and value != ""}
    return reading.converted(row.query, given)


def _to_login(request: Request) -> Response:
    """After that, back to here."""
    root = request.scope.get("root_path", "")
    if request.method not in ("GET", "HEAD"):
        return RedirectResponse(f"{root}/login", 303, HEADERS)
    here = request.scope["raw_path"].decode("ascii", "replace").removeprefix(root)
    if request.url.query:
        here += f"?{request.url.query}"
    there = f"{root}/login?next={quote(here, safe='')}"
    if is_refresh(request):
        return Response(headers={**HEADERS, "HX-Redirect": there})
    return RedirectResponse(there, 303, HEADERS)
