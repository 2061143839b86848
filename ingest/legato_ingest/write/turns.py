"""A queue of batches in which tenants take turns. The module inserts nothing."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from heapq import heappop, heapreplace

from legato_ingest.write.room import Room
from legato_ingest.write.waiting import Waiting

__all__ = ["Turns"]


class Turns:
    """Batches of tenants that take turns, those of each in their order. Not thread-safe."""

    def __init__(self) -> None:
        self._of, self._count = OrderedDict[str, deque[Waiting]](), 0

    def __len__(self) -> int:
        return self._count

    def of_tenant(self, tenant: str) -> int:
        """Return the number of a tenant's batches."""
        return len(self._of.get(tenant, ()))

    def put(self, waiting: Waiting) -> None:
        """Queue a batch behind the others of its tenant."""
        self._of.setdefault(waiting.tenant, deque()).append(waiting)
        self._count += 1

    def put_first(self, waiting: Waiting) -> None:
        """Queue a batch before all others."""
        self._of.setdefault(waiting.tenant, deque()).appendleft(waiting)
        self._of.move_to_end(waiting.tenant, last=False)
        self._count += 1

    def take(self) -> Waiting:
        """Remove and return the next batch. It is the turn of another tenant then."""
        tenant, own = self._of.popitem(last=False)
        waiting = own.popleft()
        if own:
            self._of[tenant] = own
        self._count -= 1
        return waiting

    def take_group(self, room: Room) -> list[Waiting]:
        """Remove and return what is inserted together: always the next batch of the tenant with the smallest share of the insert so far.

        A batch without room ends the turns of its tenant alone, so a tenant with large ones does not keep the small ones of others waiting.
        A tenant that got nothing keeps its place before those that did: in a later group it is the first, which has room in any case.
        """
        group, served = list[Waiting](), dict[str, None]()
        shares = [(0.0, place, tenant) for place, tenant in enumerate(self._of)]
        while shares:
            share, place, tenant = shares[0]
            own = self._of[tenant]
            if not own or not room.has(own[0]):
                heappop(shares)
                continue
            heapreplace(shares, (share + room.add(own[0]), place, tenant))
            group.append(own.popleft())
            served[tenant] = None
        for tenant in served:
            if own := self._of.pop(tenant):
                self._of[tenant] = own
        self._count -= len(group)
        return group

    def drain_of(self, tenant: str) -> Iterable[Waiting]:
        """Remove and return the batches of a tenant."""
        own = self._of.pop(tenant, deque())
        self._count -= len(own)
        return own

    def drain(self) -> list[Waiting]:
        """Remove and return all batches."""
        drained = [waiting for own in self._of.values() for waiting in own]
        self._of.clear()
        self._count = 0
        return drained
