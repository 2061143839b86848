"""What the kernel knows of the connection when a read comes late: how long its data had lain there, and how much of it.

One idea: data that had arrived long before it was read was not held up by the network, but by a reader who did not read (an event loop that
was busy). One system call or two, and only after a pause, so a steady stream pays nothing. Linux tells; elsewhere, over HTTP/2 and on
sockets that are not TCP nobody knows, and nothing is said.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["QUIET_NS", "Look", "looker"]

QUIET_NS = 50_000_000
"""After a pause of this length between two reads the kernel is asked."""
Look = Callable[[], tuple[int, int] | None]
# struct tcp_info of linux/tcp.h: eight bytes of flags, then 32-bit numbers, of which the twelfth is tcpi_last_data_recv, in ms.
_INFO_BYTES, _LAST_DATA_RECV = 104, 52
_UINT32 = struct.Struct("=I")


def looker(response: Any) -> Look | None:
    """How to ask about a response's connection: (bytes that still wait, ms since data last arrived); ``None`` where nobody knows."""
    if not sys.platform.startswith("linux") or getattr(response, "http_version", "") == "HTTP/2":
        return None
    network = (getattr(response, "extensions", None) or {}).get("network_stream")
    connection: Any = network.get_extra_info("socket") if network is not None else None
    if getattr(connection, "family", None) not in (socket.AF_INET, socket.AF_INET6):
        return None
    import fcntl
    import termios

    def look() -> tuple[int, int] | None:
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            waiting = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
            return _UINT32.unpack(waiting)[0], _UINT32.unpack_from(info, _LAST_DATA_RECV)[0]
        except Exception:
            # Closed meanwhile, a loop whose sockets are none, or a kernel that says less.
            return None

    return look
