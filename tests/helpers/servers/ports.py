"""Free ports on the loopback interface."""

import contextlib
import socket

from demo.processes import choose_port

__all__ = ["free_port", "is_open"]


def free_port() -> int:
    """Return a port on which nothing listens, and that was not returned before in this process."""
    return choose_port(0)


def is_open(port: int) -> bool:
    """Whether a server listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False
