"""HTTP servers on loopback that run for the duration of a context and answer with a given handler or function."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["serve_get", "serve_handler"]


@contextmanager
def serve_handler(handler: type[http.server.BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """Run a server with this request handler and yield its URL. Port 0 is a free port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serve_get(answer: Callable[[str], bytes | int]) -> Iterator[str]:
    """Run a server that answers GET with ``answer(path)``, a body or a status code, and yield its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = answer(self.path)
            self.send_response(body if isinstance(body, int) else 200)
            content = b"" if isinstance(body, int) else body
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            # The client closes the connection when the body exceeds its limit.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serve_handler(Handler) as url:
        yield url
