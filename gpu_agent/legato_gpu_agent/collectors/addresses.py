"""Which addresses are this host's own.

One idea: an address is this host's when a socket can be bound to it, which sends nothing to anybody. A name means a question to a server,
which may take seconds: it is asked only where a caller wants names looked up, never of what came in a datagram.
"""

from __future__ import annotations

import ipaddress
import socket

from legato_gpu_agent.plugin.identity import LOOPBACK, client_host

__all__ = ["is_local", "own_addresses"]

# Addresses that are nobody's: reserved, and meant to be discarded.
_NOBODYS = {4: "240.0.0.1", 6: "100::1"}


def is_local(host: str) -> bool:
    """Whether this address is this host's own, now; a name is none, but for loopback's, and is not looked up."""
    if client_host(host) == LOOPBACK:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_multicast or "%" in host:
        return False
    # Where the kernel binds what is nobody's (ip_nonlocal_bind), that it binds this one says nothing.
    return _can_bind(host) and not _can_bind(_NOBODYS[address.version])


def own_addresses(host: str) -> frozenset[str]:
    """Those of this host's own addresses that ``host`` stands for, as its clients have them; a name is looked up.

    Empty where it stands for another host. Raises ``OSError`` where nobody answers, or knows it, now.
    """
    if is_local(host):
        return frozenset((client_host(host),))
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except ValueError:
        # What is no name at all, like one of more than 63 letters.
        return frozenset()
    return frozenset(client_host(address) for address in found if is_local(address))


def _can_bind(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as door:
            door.bind((address, 0))
    except OSError:
        return False
    return True
