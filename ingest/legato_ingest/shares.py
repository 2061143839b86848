"""A limit that tenants share, so that none of them takes all of it: bytes of bodies in memory, and bytes of rows that wait.

Where tokens name tenants, each of them has half of what the others leave at most, so that no number of them takes all of it. The module
waits for nothing and knows no thread.
"""

from __future__ import annotations

from collections import Counter

__all__ = ["Shares"]


class Shares:
    """What tenants have of ``most``. The empty tenant, that of a server without tokens, may have all of it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._of_tenant = Counter[str]()
        self.total = 0

    def has_room(self, tenant: str, size: int, own: int = 0) -> bool:
        """Return whether the tenant may have so much more. ``own`` is what the request has already: alone, it may have any size."""
        held = self._of_tenant[tenant]
        share = (self.most - self.total + held) // (2 if tenant else 1)
        return self.total <= own or (self.total + size <= self.most and (held <= own or held + size <= share))

    def add(self, tenant: str, size: int) -> None:
        """Take note that the tenant has so much more, or less."""
        self.total += size
        self._of_tenant[tenant] += size
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
