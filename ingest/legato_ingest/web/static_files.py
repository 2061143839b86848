"""The page's HTML, scripts and styles, and how long browsers keep them.

Addresses contain a hash of all files, so a browser asks for a file once; scripts import each other by relative addresses, which keep the
hash. Only the HTML is asked for at each visit. The module needs no credentials and reads no store.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from fastapi import Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.staticfiles import StaticFiles

from legato_ingest.web.vendor import plotly_file

__all__ = ["html", "static_files", "version"]

_FOLDER = pathlib.Path(__file__).parent / "static"
_PLOTLY = "vendor/plotly.min.js"
_VERSIONED = re.compile(r"([0-9a-f]{12})/(.+)")
_PATH_BYTES_MAX = 255
_FOREVER = "public, max-age=31536000, immutable"

Public = Callable[[Callable[[Request, str], Awaitable[Response]]], Callable[[Request], Awaitable[Response]]]


@lru_cache(maxsize=1)
def version() -> str:
    """Return 12 hexadecimal digits that change with any file of the page. Plotly's file counts with its size: reading it takes longer."""
    digest = hashlib.sha256(str(pathlib.Path(plotly_file()).stat().st_size).encode())
    for path in sorted(each for each in _FOLDER.rglob("*") if each.is_file()):
        digest.update(path.relative_to(_FOLDER).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


async def html(request: Request, tenant: str) -> Response:
    """Every address of the page is answered with the same HTML; its scripts draw what the address names."""
    return HTMLResponse(_html(), headers={"Cache-Control": "no-cache"})


@lru_cache(maxsize=1)
def _html() -> str:
    """The HTML with a link to each module: a browser would find them in five rounds, by the imports of the imports."""
    modules = sorted(path.relative_to(_FOLDER).as_posix() for path in _FOLDER.rglob("*.js"))
    links = "\n".join(f'<link rel="modulepreload" href="/static/{name}">' for name in modules)
    text = (_FOLDER / "index.html").read_text(encoding="utf-8").replace("</head>", f"{links}\n</head>")
    return text.replace('"/static/', f'"/static/{version()}/')


def static_files(public: Public) -> Callable[..., Awaitable[None]]:
    """Return an ASGI app for `static/` and Plotly. ``public`` adds the check of Host and Origin and the headers of every response."""
    files = StaticFiles(directory=_FOLDER)

    async def respond(request: Request, tenant: str) -> Response:
        path = files.get_path(request.scope)
        found = _VERSIONED.fullmatch(path)
        name = found.group(2) if found else path
        if len(path.encode("utf-8", "replace")) > _PATH_BYTES_MAX:
            # The error of a file system on it would hold the request in a cycle.
            return Response(status_code=404)
        response = (
            FileResponse(plotly_file(), media_type="text/javascript") if name == _PLOTLY else await files.get_response(name, request.scope)
        )
        # A page that is open during an upgrade asks by the earlier hash: it gets the file, and does not keep it.
        is_current = found is not None and found.group(1) == version() and response.status_code == 200
        response.headers["Cache-Control"] = _FOREVER if is_current else "no-cache"
        return response

    handler = public(respond)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)

    return app
