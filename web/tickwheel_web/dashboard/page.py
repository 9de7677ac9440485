"""What a row of the table of pages is, and what its function is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from tickwheel import Client
from tickwheel.sharing.clients import Clients
from tickwheel_web.dashboard.environment import Templates
from tickwheel_web.dashboard.figures.history import History
from tickwheel_web.dashboard.figures.recent import LIVE_S, REFRESH_S, Recent
from tickwheel_web.dashboard.guard import HEADERS
from tickwheel_web.dashboard.logins import Login, Logins
from tickwheel_web.dashboard.notices import Notice, Notices, Tone, command
from tickwheel_web.dashboard.rights import Rights
from tickwheel_web.ending import Ending
from tickwheel_web.limits import Limit
from tickwheel_web.shapes import NoQuery

NOTICE: str = "done"
"""The query parameter that has the number of a notice."""
FILE: str = "application/octet-stream"
"""What no browser shows."""


@dataclass(frozen=True)
class Hiding:
    """What of messages no page shows."""

    bodies: bool = False
    headers: frozenset[str] = frozenset()
    """Names, in small letters."""

    @property
    def hides(self) -> bool:
        """Whether there is anything."""
        return self.bodies or bool(self.headers)

    def shown(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        """The headers that may be shown."""
        return {name: value for name, value in headers.items() if name.lower() not in self.headers}


@dataclass(frozen=True)
class Site:
    """What all pages of one application share."""

    templates: Templates
    clients: Clients
    logins: Logins
    notices: Notices
    history: History
    recent: Recent
    tabs: Limit
    """Streams of live figures."""
    queries: Limit
    """With SQL, and running."""
    ending: Ending
    hiding: Hiding
    is_read_only: bool
    threshold_s: float
    """What is later than that is shown as late."""
    menu: Sequence[Page]
    """Those that stand in it, in order."""
    paths: frozenset[str]
    """Of all pages."""


@dataclass(frozen=True)
class Viewed:
    """A request for a page: everything about it that its function needs."""

    request: Request
    row: Page
    client: Client
    rights: Rights
    query: Any
    """Of the row's ``query``."""
    form: Mapping[str, Sequence[str]]
    """The fields of a form that was sent; empty for GET."""
    caller: str
    """Whose limits and notices count."""
    token: str
    address: str
    login: Login | None
    site: Site

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def field(self, name: str) -> str:
        """Of the form, without spaces around it; empty: it was not given."""
        return self.form.get(name, [""])[-1].strip()

    def fields(self, name: str) -> Sequence[str]:
        """Of the form: all values that it has, such as those of check boxes."""
        return self.form.get(name, [])

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """The page that a template makes of these values. ``twin``: as in a row, where it depends on more."""
        values.setdefault("twin", self._twin())
        number = self.request.query_params.get(NOTICE, "")
        site = self.site
        return site.templates.page(
            self.request,
            template,
            status,
            row=self.row,
            asked=self.query,
            parts=get_args(Part),
            menu=[one for one in site.menu if self.rights.sees(one.right)],
            paths=site.paths,
            may=self.rights.may,
            sees=self.rights.sees,
            login=self.login,
            is_read_only=site.is_read_only,
            hiding=site.hiding,
            notice=site.notices.find(self.caller, number) if number else None,
            **values,
        )

    def done(
        self, path: str, text: str, does_same: Sequence[str] | str = (), tone: Tone = "good", **query: str
    ) -> Response:
        """After an action: on to a page, which shows what came of it. ``path`` as in the table; ``does_same`` in a
        terminal: the words after ``tickwheel``, or a whole line."""
        line = does_same if isinstance(does_same, str) else command(*does_same)
        notice = Notice(text, tone, line if does_same else "")
        asked = urlencode({**query, NOTICE: self.site.notices.keep(self.caller, notice)})
        root = self.request.scope.get("root_path", "")
        return RedirectResponse(f"{root}{path}?{asked}", 303, HEADERS)

    def download(self, content: bytes | AsyncIterator[bytes], name: str) -> Response:
        """A file that no browser shows, under this name."""
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        if isinstance(content, bytes):
            return Response(content, headers=headers, media_type=FILE)
        return StreamingResponse(content, headers=headers, media_type=FILE)

    @property
    def max_age_s(self) -> float:
        """How old what is shown may be."""
        return REFRESH_S if is_refresh(self.request) else LIVE_S

    @property
    def above(self) -> str:
        """The path that this one is a part of, such as that of the topic that it pauses."""
        return self._with_parts(self.row.path.rpartition("/")[0])

    def _twin(self) -> str | None:
        """Where the API has the same."""
        return None if self.row.twin is None else self._with_parts(self.row.twin)

    def _with_parts(self, path: str) -> str:
        parts = self.request.path_params.items()
        return path.format(**{name: quote(str(value), safe="") for name, value in parts})


def is_refresh(request: Request) -> bool:
    """Whether a script loads a part of a page anew."""
    return request.method == "GET" and "hx-request" in request.headers


Showing: TypeAlias = Callable[[Viewed], Awaitable[Response]]


Part = Literal["Time", "Messages", "Schedules", "Operation"]


@dataclass(frozen=True)
class Entry:
    """Where a page stands in the menu."""

    part: Part
    icon: str
    """A name of ``templates/icons.html``."""
    key: str = ""
    """With `g` before it, this key leads there."""


@dataclass(frozen=True)
class Page:
    """One method of one path. From these rows come the routes, the menu, and what the tests go through."""

    method: Literal["GET", "POST"]
    path: str
    showing: Showing
    title: str
    right: str
    """What a token needs, as the table of endpoints has it."""
    twin: str | None = None
    """The path at which the API has the same as JSON, with the names of this path's parts."""
    entry: Entry | None = None
    query: type[msgspec.Struct] = NoQuery
    shows_all: bool = False
    """What is hidden on other pages cannot be on this one, so that it is not there where anything is hidden."""
