"""A server whose pages are read once each, as TensorRT-LLM's lists are.

One idea: what it answers to a path is asked of the test, bytes or a status, over a real socket on loopback.
"""

from __future__ import annotations

import contextlib
import http.server
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from helpers.answering import answering

__all__ = ["drained"]


@contextmanager
def drained(answer: Callable[[str], bytes | int]) -> Iterator[str]:
    """Its URL, while it runs."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = answer(self.path)
            self.send_response(body if isinstance(body, int) else 200)
            content = b"" if isinstance(body, int) else body
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            # Whoever finds the page too long hangs up.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Not here."""

    with answering(Handler) as url:
        yield url
