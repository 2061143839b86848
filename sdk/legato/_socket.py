"""Probe of a connection's socket after a late read: how much data was in its receive queue, and when data last arrived.

Data that arrived long before it was read was not delayed by the network but by the reader, for example by a blocked event loop. A probe
is two system calls, and runs only after a pause, so a steady stream has no cost. It works on Linux only; on other systems, over HTTP/2
and on sockets that are not TCP, there is no probe and the values stay unknown.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["QUIET_NS", "Probe", "socket_probe"]

QUIET_NS = 50_000_000
"""Shortest pause between two reads after which the socket is probed."""
Probe = Callable[[], tuple[int, int] | None]
# struct tcp_info of linux/tcp.h: eight bytes of flags, then 32-bit numbers. The twelfth number is tcpi_last_data_recv, in ms.
_INFO_BYTES, _LAST_DATA_RECV = 104, 52
_UINT32 = struct.Struct("=I")


def socket_probe(response: Any) -> Probe | None:
    """Return a function that probes the connection of an HTTP response; ``None`` where that is not possible.

    The function returns (bytes in the receive queue, ms since data last arrived), or ``None`` if the system calls fail.
    """
    if not sys.platform.startswith("linux") or getattr(response, "http_version", "") == "HTTP/2":
        return None
    network = (getattr(response, "extensions", None) or {}).get("network_stream")
    connection: Any = network.get_extra_info("socket") if network is not None else None
    if getattr(connection, "family", None) not in (socket.AF_INET, socket.AF_INET6):
        return None
    import fcntl
    import termios

    def probe() -> tuple[int, int] | None:
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            queued = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
            return _UINT32.unpack(queued)[0], _UINT32.unpack_from(info, _LAST_DATA_RECV)[0]
        except Exception:
            # The socket was closed meanwhile, the event loop wraps it in an object without these calls, or the kernel's struct is shorter.
            return None

    return probe
