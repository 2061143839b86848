"""Which addresses belong to this host.

An address is local if a socket can be bound to it, which sends no packet. A name requires a DNS query, which may take seconds, so names are
resolved only where the caller asks for it, never for the contents of a datagram.
"""

from __future__ import annotations

import ipaddress
import socket

from legato_gpu_agent.plugin.identity import LOOPBACK, client_host

__all__ = ["is_local", "local_addresses"]

# Addresses that no host may have: a reserved one, and the discard prefix.
_UNASSIGNED = {4: "240.0.0.1", 6: "100::1"}


def is_local(host: str) -> bool:
    """Return whether this address currently belongs to this host. A name other than loopback's is not resolved and is not local."""
    if client_host(host) == LOOPBACK:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_multicast or "%" in host:
        return False
    # A kernel that binds unassigned addresses (ip_nonlocal_bind) binds any address, so its answer means nothing.
    return _can_bind(host) and not _can_bind(_UNASSIGNED[address.version])


def local_addresses(host: str) -> frozenset[str]:
    """Return the addresses of this host that ``host`` (an address or a name, which is resolved) refers to, in the form of `client_host`.

    Empty for another host. Raises ``OSError`` if the name cannot be resolved now.
    """
    if is_local(host):
        return frozenset((client_host(host),))
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except ValueError:
        # Not a valid name, such as one with a label of more than 63 letters.
        return frozenset()
    return frozenset(client_host(address) for address in found if is_local(address))


def _can_bind(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as test_socket:
            test_socket.bind((address, 0))
    except OSError:
        return False
    return True
