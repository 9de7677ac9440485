"""Style sheets and scripts: a name that changes with the content, so that browsers may keep them for good."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tickwheel.look import LOOK

FOLDER: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STYLE: Final = "app.css"
_KEEP: Final = "public, max-age=31536000, immutable"
_DIGITS: Final = 12


class Assets:
    """All of them, in memory: they are small."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._contents: dict[str, bytes] = {}
        self._paths: dict[str, str] = {}
        for file in sorted(folder.rglob("*")):
            if file.suffix in _KINDS:
                name, content = file.relative_to(folder).as_posix(), file.read_bytes()
                if name == _STYLE:
                    content = LOOK.read_bytes() + content
                path = f"/static/{hashlib.sha256(content).hexdigest()[:_DIGITS]}/{name}"
                self._contents[path], self._paths[name] = content, path

    @property
    def names(self) -> list[str]:
        """In order."""
        return list(self._paths)

    def path(self, name: str) -> str:
        """Where it is served. Raises KeyError."""
        return self._paths[name]

    async def serve(self, request: Request) -> Response:
        """What is at a path. One with an old digest is not there: a page that names it is old as well."""
        path = request.path_params["path"]
        content = self._contents.get(f"/static/{path}")
        if content is None:
            return Response("There is no such file.\n", 404, media_type="text/plain")
        kind = _KINDS["." + path.rpartition(".")[2]]
        return Response(content, headers={"Cache-Control": _KEEP}, media_type=kind)
