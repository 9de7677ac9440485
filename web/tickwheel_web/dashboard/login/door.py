"""The page that takes a token. The broker says whether it is one; here it stays, and the browser gets a number."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tickwheel.errors import TickwheelError
from tickwheel.protocol.limits import MAX_TOKEN_CHARS
from tickwheel.sharing.clients import Clients
from tickwheel_web import reading
from tickwheel_web.dashboard.environment import Templates
from tickwheel_web.dashboard.guard import HEADERS
from tickwheel_web.dashboard.logins import Logins, cookie_of, set_cookie
from tickwheel_web.problems import problem_of

_MAX_BYTES: Final = 16_384
_MAX_S: Final = 10.0
_FORM: Final = "application/x-www-form-urlencoded"


class Door:
    """For all who want to come in."""

    def __init__(self, clients: Clients, templates: Templates, logins: Logins) -> None:
        self._clients = clients
        self._templates = templates
        self._logins = logins

    async def show(self, request: Request) -> Response:
        """The page with the form."""
        return self._page(request, _local(request.query_params.get("next", "")))

    async def come_in(self, request: Request) -> Response:
        """Asks the broker whether the token is good. Raises Refused."""
        reading.need_media_type(request, [_FORM])
        body = await reading.read_body(request, _MAX_BYTES, _MAX_S)
        fields = parse_qs(body.decode("utf-8", "replace"))
        token = fields.get("token", [""])[-1].strip()
        onward = _local(fields.get("next", [""])[-1])
        address = reading.address(request)
        if not token.isascii() or not 0 < len(token) <= MAX_TOKEN_CHARS:
            return self._page(request, onward, "This is no token: it begins with twk_.", 400)
        try:
            async with self._clients.client(token, address):
                pass
        except TickwheelError as error:
            problem = problem_of(error)
            return self._page(request, onward, problem.detail, problem.status)
        self._logins.end(cookie_of(request))
        number = self._logins.begin(token, address)
        response = RedirectResponse(request.scope.get("root_path", "") + onward, 303, HEADERS)
        set_cookie(request, response, number)
        return response

    async def leave(self, request: Request) -> Response:
        """The login is over, here and in the browser."""
        self._logins.end(cookie_of(request))
        response = RedirectResponse(request.scope.get("root_path", "") + "/login?left=1", 303, HEADERS)
        set_cookie(request, response, "")
        return response

    def _page(self, request: Request, onward: str, problem: str = "", status: int = 200) -> Response:
        # A cookie that is for this site alone does not come with a link from another one, but with a page's own.
        is_from_elsewhere = request.headers.get("sec-fetch-site") == "cross-site"
        return self._templates.page(
            request,
            "login.html",
            status,
            onward=onward,
            problem=problem,
            has_left="left" in request.query_params,
            again=is_from_elsewhere and request.method == "GET",
        )


def _local(path: str) -> str:
    """A path of this site; else the first page.

    >>> _local("/topics?x=1"), _local("//evil.example"), _local("https://evil.example"), _local("/\\\\evil.example")
    ('/topics?x=1', '/', '/', '/')
    """
    is_local = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    return path if is_local else "/"
