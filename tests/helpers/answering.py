"""A small HTTP server for the time of a test.

One idea: what it answers is the handler's business; that it listens on loopback, and is gone afterwards, is this one's.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["answering"]


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
