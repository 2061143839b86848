"""The queues of the committer: that of rows of now, that of late rows, and those of what failed.

Each day of each table that an insert touches is a separate part on the disk and takes some 20 ms. Rows of today and yesterday (UTC) touch
few parts, however many requests bring them. Requests with other rows wait in the late lane. They are inserted together, a day at a time, so
that requests of now never wait for more than one day. The rows of now of a late request are also a separate batch in the first lane. For
a minute after a failure by its own fault a tenant's batches are inserted apart from those of others; what failed alone waits behind all.
The module inserts nothing and knows no thread.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.shares import Shares
from legato_ingest.write.body import Entry
from legato_ingest.write.room import LATE_DAYS_MAX, Room
from legato_ingest.write.set_aside import FAULT
from legato_ingest.write.turns import Turns
from legato_ingest.write.waiting import Waiting

__all__ = ["Alone", "Apart", "Lane", "Lanes", "LatePauses"]

# Late rows may take so much of the queue; from half of that on they are inserted without the long pause.
_LATE_SHARE = 0.5
# So long after a failure, the batches of its tenant are inserted apart from those of others.
_APART_S = 60.0


class Lane:
    """One queue. ``held`` are the bytes of tenants that were accepted for it, with their bodies; ``row_bytes`` those of its rows.

    ``queued``: the number of the last batch. Tenants take turns: many batches of one delay those of another by one group, and so do large
    ones. A tenant that is set apart has a queue in it that delays no other. Not thread-safe.
    """

    def __init__(self, bytes_max: int, days_max: int | None = None) -> None:
        self._days_max = days_max
        self._waiting, self._apart = Turns(), dict[str, Turns]()
        # Batches with which the process of the store ended repeatedly.
        self._suspects = Turns()
        self.held = Shares(bytes_max)
        self.queued = self.row_bytes = 0
        # The numbers of each tenant's batches for which a reader may wait, in their order, and the last one for which a reader waits.
        self._open, self._wanted = dict[str, OrderedDict[int, None]](), dict[str, int]()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._suspects) + sum(map(len, self._apart.values()))

    @property
    def has_trusted(self) -> bool:
        """Whether batches of tenants wait that are not set apart."""
        return bool(self._waiting)

    @property
    def is_wanted(self) -> bool:
        """Whether a reader waits for a batch."""
        return bool(self._wanted)

    def want(self, tenant: str) -> int:
        """Take note that a reader waits for all batches of a tenant, or of all, that are queued. Return the number of the last one."""
        self._wanted.update((each, self.queued) for each in self._tenants(tenant))
        return self.queued

    def is_finished(self, tenant: str, number: int) -> bool:
        """Return whether no batch of a tenant, or of all, up to this number is open."""
        return all(next(iter(self._open[each])) > number for each in self._tenants(tenant))

    def _tenants(self, tenant: str) -> Collection[str]:
        """Return which tenants have open batches: all, or this one."""
        return self._open if tenant == ALL_TENANTS else self._open.keys() & {tenant}

    def put(self, group: Iterable[Waiting]) -> None:
        """Queue batches."""
        for waiting in group:
            self._queue_of(waiting).put(waiting)
            self.queued += 1
            waiting.number = self.queued
            self._open.setdefault(waiting.tenant, OrderedDict())[waiting.number] = None

    def drain(self) -> list[Waiting]:
        """Remove and return all batches."""
        return [waiting for queue in (self._suspects, self._waiting, *self._apart.values()) for waiting in queue.drain()]

    def put_back(self, group: Sequence[Waiting]) -> None:
        """Queue batches of a failed insert again, before all others."""
        for waiting in reversed(group):
            self._queue_of(waiting).put_first(waiting)

    def finish(self, group: Iterable[Waiting]) -> None:
        """Take note that no reader waits for these batches from now on: they have left the committer, or failed alone."""
        for waiting in group:
            own = self._open.get(waiting.tenant, OrderedDict())
            own.pop(waiting.number, None)
            if not own:
                self._open.pop(waiting.tenant, None)
            if self.is_finished(waiting.tenant, self._wanted.get(waiting.tenant, 0)):
                self._wanted.pop(waiting.tenant, None)

    def set_apart(self, tenant: str) -> None:
        """Give a tenant a separate queue, unless it has one."""
        if tenant not in self._apart:
            self._apart[tenant] = Turns()
            for waiting in self._waiting.drain_of(tenant):
                self._apart[tenant].put(waiting)

    def put_together(self, tenant: str) -> None:
        """Queue the batches of a tenant that was set apart before those of others again."""
        for waiting in reversed(self._apart.pop(tenant, Turns()).drain()):
            self._waiting.put_first(waiting)

    def take(self, chunks_max: int) -> list[Waiting]:
        """Remove and return the next group of tenants that are not set apart: as many batches as fit, at least one if there is any."""
        return self._waiting.take_group(Room(chunks_max, self._days_max))

    def take_apart(self, chunks_max: int) -> list[list[Waiting]]:
        """Remove and return the next group of each tenant that is set apart.

        And each batch with which the process of the store ended repeatedly, as a group: among others it would divide their groups.
        """
        groups = [queue.take_group(Room(chunks_max, self._days_max)) for queue in self._apart.values() if queue]
        return [[waiting] for waiting in self._suspects.drain()] + groups

    def _queue_of(self, waiting: Waiting) -> Turns:
        return self._suspects if waiting.blame >= FAULT else self._apart.get(waiting.tenant, self._waiting)


class Lanes:
    """The lane of rows of today and yesterday, that of late rows, and the bytes that wait in both. Not thread-safe.

    A body is counted from its first batch until none is open, in the lane of the first.
    """

    def __init__(self, bytes_max: int) -> None:
        self.now, self.late = Lane(bytes_max), Lane(int(_LATE_SHARE * bytes_max), LATE_DAYS_MAX)
        self.apart, self.alone = Apart(), Alone()
        # When a batch of a tenant last failed by its own fault (monotonic, s).
        self._failed_s = dict[str, float]()
        self._held = Shares(bytes_max)
        self._bodies = dict[Entry, Lane]()

    @property
    def bytes(self) -> int:
        """Bytes that were accepted for both lanes."""
        return self._held.total

    @property
    def bytes_max(self) -> int:
        """The most bytes that are accepted for both lanes."""
        return self._held.most

    def of(self, waiting: Waiting) -> Lane:
        """Return the lane of a batch."""
        return self.late if waiting.is_late else self.now

    def put_back(self, group: Sequence[Waiting]) -> None:
        """Queue batches of a failed insert again, before all others of their lane."""
        self.alone.put_back([each for each in group if each.is_alone])
        for lane in (self.now, self.late):
            lane.put_back([each for each in group if not each.is_alone and self.of(each) is lane])

    def clear_of_suspicion(self) -> None:
        """An insert has ended well: queue in its lane again what is alone only because the store took nothing. Readers wait for it then."""
        for waiting in self.alone.take_unproven():
            waiting.is_alone = False
            self.of(waiting).put([waiting])

    def take(self, lane: Lane, chunks_max: int) -> list[Waiting]:
        """Remove and return the next group of a lane, of tenants without failures of late. What is inserted apart goes to ``apart``."""
        after_s = time.monotonic() - _APART_S
        for tenant in [tenant for tenant, at_s in self._failed_s.items() if at_s < after_s]:
            del self._failed_s[tenant]
            for each in (self.now, self.late):
                each.put_together(tenant)
        for group in lane.take_apart(chunks_max):
            self.apart.put_last(group)
        return lane.take(chunks_max)

    def set_apart(self, tenant: str) -> None:
        """Take note that a batch of a tenant failed by its own fault: its batches are inserted apart from those of others for a minute."""
        self._failed_s[tenant] = time.monotonic()
        for each in (self.now, self.late, self.apart):
            each.set_apart(tenant)

    def drain(self) -> list[Waiting]:
        """Remove and return all batches."""
        return [*self.now.drain(), *self.late.drain(), *self.apart.drain(), *self.alone.drain()]

    def hold(self, group: Iterable[Waiting], sign: int = 1) -> None:
        """Count the bytes of batches that were accepted, or with -1 of those that have left."""
        for waiting in group:
            lane = self.of(waiting)
            lane.row_bytes += sign * waiting.size
            for held in (lane.held, self._held):
                held.add(waiting.tenant, sign * waiting.size)

    def hold_body(self, waiting: Waiting) -> None:
        """Count the body of a batch that was accepted, unless it is counted."""
        if waiting.entry is not None and waiting.entry not in self._bodies:
            self._bodies[waiting.entry] = lane = self.of(waiting)
            self._count_body(waiting.entry, lane, 1)

    def release_body(self, entry: Entry) -> None:
        """Count a body no longer."""
        if (lane := self._bodies.pop(entry, None)) is not None:
            self._count_body(entry, lane, -1)

    def bodies_in(self, segment: int) -> list[Entry]:
        """Return the bodies that are counted and in this segment of the log, and not set aside."""
        return [entry for entry in self._bodies if entry.segment == segment and not entry.is_set_aside]

    def _count_body(self, entry: Entry, lane: Lane, sign: int) -> None:
        for held in (lane.held, self._held):
            held.add(entry.body.tenant, sign * len(entry.body.content))

    def why_full(self, size: int, *, is_late: bool, entry: Entry | None, has_log: bool, in_lane: bool = False) -> str:
        """Return what fills the lanes if there is no room for a batch of this size, else an empty text.

        A batch without a log has room if no other waits. ``in_lane``: only the lane of the batch counts, not both together.
        """
        tenant, body_bytes, own_lane, lane = "", 0, None, self.late if is_late else self.now
        if entry is not None:
            tenant, body_bytes, own_lane = entry.body.tenant, len(entry.body.content), self._bodies.get(entry)
        # A body that is counted is what the request has already; another one comes with this batch.
        own, size = (body_bytes, size) if own_lane is not None else (0, size + body_bytes)
        if not in_lane and (self.now or self.late or self.apart or has_log) and not self._held.has_room(tenant, size, own):
            return f"{self._held.total} bytes of rows wait to be stored"
        if (is_late or in_lane) and not lane.held.has_room(tenant, size, own if own_lane is lane else 0):
            return f"{lane.held.total} bytes of rows of {'earlier' if is_late else 'these'} days wait to be stored"
        return ""


class Apart:
    """Groups that are inserted apart: the halves of groups that failed, and groups of tenants that are set apart. Not thread-safe.

    Tenants take turns, and halves with batches of several tenants take theirs: they share the time whatever the number of each.
    """

    def __init__(self) -> None:
        # The next group of a tenant is the last. The groups of several tenants have no tenant.
        self._groups = OrderedDict[str | None, deque[list[Waiting]]]()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def put(self, groups: Iterable[list[Waiting]]) -> None:
        """Queue groups before the others of their tenants. The last is taken first."""
        for group in groups:
            self._of(group).append(group)

    def put_last(self, group: list[Waiting]) -> None:
        """Queue a group behind the others of its tenant."""
        self._of(group).appendleft(group)

    def _of(self, group: list[Waiting]) -> deque[list[Waiting]]:
        tenants = {waiting.tenant for waiting in group}
        return self._groups.setdefault(tenants.pop() if len(tenants) == 1 else None, deque())

    def take(self) -> list[Waiting]:
        """Remove and return the next group. It is the turn of another tenant then."""
        tenant, own = self._groups.popitem(last=False)
        group = own.pop()
        if own:
            self._groups[tenant] = own
        return group

    def set_apart(self, tenant: str) -> None:
        """Divide the groups of several tenants: what is of this one waits for its turn."""
        mixed = self._groups.pop(None, deque())
        for is_own in (True, False):
            parts = ([waiting for waiting in group if (waiting.tenant == tenant) == is_own] for group in mixed)
            self.put(part for part in parts if part)

    def drain(self) -> list[Waiting]:
        """Remove and return all batches."""
        drained = [waiting for groups in self._groups.values() for group in reversed(groups) for waiting in group]
        self._groups.clear()
        return drained


class Alone:
    """Batches that failed alone: each is tried again one by one, those of tenants in turns. Not thread-safe.

    The tries take a fifth of the time at most, and the next one after a failure comes after ``apart_s``.
    """

    _TIMES = 4.0

    def __init__(self) -> None:
        self._waiting, self._due_s, self._is_ending = Turns(), 0.0, False

    def __len__(self) -> int:
        return len(self._waiting)

    def of_tenant(self, tenant: str) -> int:
        """Return the number of a tenant's batches."""
        return self._waiting.of_tenant(tenant)

    def put(self, waiting: Waiting, lane: Lane) -> None:
        """Queue a batch of this lane behind the others of its tenant. From now on no reader waits for it."""
        lane.finish([waiting])
        waiting.is_alone = True
        if not self._is_ending:
            self._waiting.put(waiting)

    def put_back(self, group: Sequence[Waiting]) -> None:
        """Queue batches again, before the others: the store could not take them."""
        for waiting in reversed(group if not self._is_ending else ()):
            self._waiting.put_first(waiting)

    def end(self) -> None:
        """From now on each has one further try, without pauses. What fails then is queued no more: it is in the log."""
        self._is_ending = True

    def take_unproven(self) -> list[Waiting]:
        """Remove and return the batches with failures that do not count against them."""
        waiting = self._waiting.drain()
        for each in waiting:
            if each.is_at_fault:
                self._waiting.put(each)
        return [each for each in waiting if not each.is_at_fault]

    def take(self) -> list[Waiting]:
        """Remove and return the next batch. It is the turn of another tenant then."""
        return [self._waiting.take()]

    def drain(self) -> list[Waiting]:
        """Remove and return all batches."""
        return self._waiting.drain()

    def tried(self, took_s: float, apart_s: float = 0.0) -> None:
        """Take note that a try has ended now."""
        self._due_s = max(self._due_s, time.monotonic() + max(apart_s, self._TIMES * took_s))

    def pause_s(self) -> float:
        """Return the seconds until the next try."""
        return 0.0 if self._is_ending else self._due_s - time.monotonic()


class LatePauses:
    """The pauses after inserts of late rows: most of the time is for rows of now. The pause is shorter if something waits for late rows."""

    _APART_S, _WANTED_S = 8.0, 1.0
    # After an insert that took long: so many times its duration, at most so long.
    _TIMES, _LONG_S, _MOST_S = 4.0, 0.5, 10.0

    def __init__(self) -> None:
        self._ended_s = self._took_s = 0.0

    def taken(self) -> None:
        """Take note that late rows leave their queue now. If they are inserted apart, this begins the pause."""
        self._ended_s, self._took_s = time.monotonic(), 0.0

    def ended(self, took_s: float, *, is_apart: bool = False) -> None:
        """Take note that an insert of late rows has ended now, and how long it took. Of many halves apart none begins the pause anew."""
        self._ended_s = self._ended_s if is_apart else time.monotonic()
        self._took_s = max(self._took_s, took_s)

    def left_s(self, is_urgent: bool) -> float:
        """Return the seconds until the next insert. ``is_urgent``: a reader or a request waits for it, or the queue is half full."""
        apart_s = self._WANTED_S if is_urgent else self._APART_S
        if self._took_s > self._LONG_S:
            apart_s = max(apart_s, min(self._TIMES * self._took_s, self._MOST_S))
        return self._ended_s + apart_s - time.monotonic()
