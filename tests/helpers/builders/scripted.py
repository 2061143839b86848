"""TCP servers on loopback in which a script answers each connection with arbitrary, also malformed, bytes."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["METRICS_TEXT", "Script", "Server", "always", "answer", "bound", "chunked", "drip", "read_request", "reply_with", "silent"]

METRICS_TEXT = b"# a page\nvllm:num_requests_running 3\n" * 20
_PATIENCE_S = 120

Script = Callable[[socket.socket], object]


def answer(body: bytes = METRICS_TEXT, status: str = "200 OK", *headers: str) -> bytes:
    """An HTTP/1.1 response with a Content-Length."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


def chunked(*pieces: bytes) -> bytes:
    """A response with chunked transfer encoding, without the empty chunk that ends it."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def read_request(connection: socket.socket) -> bytes:
    """Read one request without a body; empty if the client closed the connection."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = connection.recv(65_536)
        if not more:
            return b""
        data += more
    return data


def reply_with(*answers: bytes) -> Script:
    """A script that sends one of the answers for each request and then closes the connection."""

    def script(connection: socket.socket) -> None:
        for each in answers:
            if read_request(connection):
                connection.sendall(each)

    return script


def always(each: bytes = answer()) -> Script:
    """A script that answers every request of a connection in the same way until the client closes it."""

    def script(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(each)

    return script


def drip(head: bytes, pieces: Iterator[bytes], pause_s: float = 0.01) -> Script:
    """A script that sends the head at once and then one piece every ``pause_s`` seconds until the client closes the connection."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(head)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)

    return script


def silent(connection: socket.socket) -> None:
    """A script that reads requests and answers none."""
    while read_request(connection):
        pass


def bound(port: int = 0) -> socket.socket:
    """A socket that is bound to the port (by default a free one) and does not listen yet."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


class Server:
    """A server that runs the next script for each connection; the last script serves all later ones. It listens inside its context."""

    def __init__(self, *scripts: Script, context: ssl.SSLContext | None = None, listener: socket.socket | None = None) -> None:
        self._scripts, self._context, self.connections = scripts, context, 0
        self._listener = listener or bound()
        self._threads = [threading.Thread(target=self._accept)]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Server:
        self._listener.listen()
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                script = self._scripts[min(self.connections, len(self._scripts) - 1)]
                self.connections += 1
                self._threads.append(threading.Thread(target=self._serve, args=(connection, script)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket, script: Script) -> None:
        """Run the script on one connection. Errors are ignored: they occur when the client closes the connection."""
        connection.settimeout(_PATIENCE_S)
        with contextlib.suppress(OSError), connection:
            with self._context.wrap_socket(connection, server_side=True) if self._context else connection as stream:
                script(stream)
