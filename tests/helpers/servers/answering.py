"""A small HTTP server for the time of a test.

One idea: what it answers is the handler's business; that it listens on loopback, and is gone afterwards, is this one's.
"""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["answering", "answering_get"]


@contextmanager
def answering(handler: type[http.server.BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """Its URL, while it runs."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering_get(answer: Callable[[str], bytes | int]) -> Iterator[str]:
    """The URL of one that asks ``answer`` what each path says, bytes or a status, while it runs."""

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
