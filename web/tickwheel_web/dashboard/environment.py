"""The templates, and what all of them have at hand. Everything is escaped unless a template says otherwise."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from tickwheel.protocol.readable import noun
from tickwheel_web.dashboard import drawing, words
from tickwheel_web.dashboard.assets import Assets
from tickwheel_web.dashboard.guard import HEADERS

FOLDER: Final = Path(__file__).parent / "templates"
_FILTERS: Final = (
    words.count,
    words.cut,
    words.rate,
    words.size,
    words.duration,
    words.relative,
    words.at_most,
    words.utc,
    words.iso,
    words.prose,
)


class Templates:
    """Makes pages of them."""

    def __init__(self, assets: Assets) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {one.__name__: one for one in _FILTERS}
        self._environment.globals |= {
            "asset": assets.path,
            "bars": drawing.bars,
            "gaps": drawing.gaps,
            "level": drawing.level,
            "line": drawing.line,
            "marks": drawing.marks,
            "noun": noun,
            "time_now": lambda: datetime.now(UTC),
        }

    def compile(self) -> None:
        """All of them now. Else each is compiled when somebody first wants its page, and others wait meanwhile."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """The page that a template makes of these values, for who has made this request."""
        root = request.scope.get("root_path", "")
        text = self._environment.get_template(template).render(root=root, **values)
        return HTMLResponse(text, status, HEADERS)
