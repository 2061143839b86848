"""A backend that accepts one connection and replies with a byte at a time, or hangs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

__all__ = ["slow_backend"]


@contextlib.contextmanager
def slow_backend(pause_s: float) -> Iterator[tuple[str, threading.Event]]:
    """A server that accepts one request and replies with a byte at a time. The event is set when the request has arrived."""
    arrived, done = threading.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    # A test that connects never must fail, and not hang.
    listener.settimeout(30)

    def reply() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            connection.recv(65_536)
            arrived.set()
            for each in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(1000):
                if done.wait(pause_s):
                    return
                connection.sendall(bytes((each,)))

    thread = threading.Thread(target=reply, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", arrived
    finally:
        done.set()
        thread.join()
        listener.close()
