"""Free ports on the loopback interface."""

import contextlib
import random
import socket

__all__ = ["free_port", "is_open"]

# Below the ports that Linux chooses for outgoing connections (32,768 and above), so that no client takes a port before its server does.
_FIRST, _LAST = 10_000, 32_000
# Not seeded: several processes of one test run choose at the same time.
_random = random.SystemRandom()
_given = set[int]()


def free_port() -> int:
    """Return a port on which nothing listens, and that this function has not returned before in this process."""
    while True:
        port = _random.randint(_FIRST, _LAST)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def is_open(port: int) -> bool:
    """Whether a server listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False
