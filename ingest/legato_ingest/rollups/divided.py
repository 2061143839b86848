"""Rollups of single tenants that take much memory: computed behind everything else, in small pieces, over several runs.

One tenant with long texts must not keep the others waiting. What the store refused waits here, and is left out of the statements for all
others until it is computed. Tenants have their turns. Of a tenant the pieces that may fit come first, or the oldest periods, and a period
that must be divided by its keys goes on where the last run ended. If its rows changed meanwhile, it is computed once more from its
beginning. While the store has no memory for the smallest piece either, nothing is divided. The module has no SQL and reads no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from legato_ingest.errors import StoreError
from legato_ingest.rollups.backlog import Progress
from legato_ingest.rollups.pieces import Piece, fits, try_smallest

__all__ = ["NO_PROGRESS", "Divided"]

NO_PROGRESS: Progress = (2**63, 2**63)
"""The progress before work that limits none: after a start it is found without it."""
_log = logging.getLogger("legato")


@dataclass(slots=True, eq=False)
class _Work:
    """The next piece of a tenant's periods in a table, and the progress before they were found; ``changed``: before they changed since.

    ``failures``: how often in a row the store had no memory for the smallest piece either.
    """

    table: str
    next: Piece
    before: Progress
    changed: Progress | None = None
    failures: int = 0

    def has(self, table: str, starts_s: set[int]) -> bool:
        return table == self.table and not starts_s.isdisjoint(self.next.starts_s.tolist())


class Divided:
    """Pieces that wait. Not for several threads at once.

    ``in_order``: of a tenant no period is computed before an older one, so while it has pieces here, all of its periods come here.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order
        # By tenant, in their turns.
        self._works: dict[str, list[_Work]] = {}

    def __bool__(self) -> bool:
        """Whether a piece waits."""
        return bool(self._works)

    @property
    def keeps_progress(self) -> bool:
        """Whether a piece waits that the recorded progress must not pass."""
        return any(work.before < NO_PROGRESS for works in self._works.values() for work in works)

    def add(self, table: str, piece: Piece, before: Progress) -> None:
        """Add a piece of one tenant, without what was left out of it. ``before``: the progress until its periods were found dirty."""
        ((tenant,),) = (piece.tenants or (),)
        waiting = [start for name, start in piece.apart if name == tenant]
        starts_s = piece.starts_s[~np.isin(piece.starts_s, waiting)]
        if len(starts_s):
            self._works.setdefault(tenant, []).append(_Work(table, replace(piece, starts_s=starts_s, apart=()), before))

    def left_out(
        self,
        table: str,
        starts_s: NDArray[np.int64],
        before: Progress,
        with_rows: Callable[[Piece], NDArray[np.int64]] = attrgetter("starts_s"),
    ) -> Piece:
        """Return the piece of these periods (Unix s, ascending) without those that wait; note that these changed after ``before``.

        With ``in_order`` all of them wait for the tenants that have pieces here. ``with_rows`` returns the periods of a piece with rows.
        """
        starts, apart = set(starts_s.tolist()), set[tuple[str, int]]()
        for tenant, works in self._works.items():
            for work in works:
                if work.has(table, starts):
                    if work.next.number:
                        work.changed = work.changed or before
                    apart |= {(tenant, start) for start in work.next.starts_s.tolist() if start in starts}
        left = Piece(starts_s, apart=tuple(sorted(apart)))
        if not self._in_order or not self._works:
            return left
        for tenant in list(self._works):
            of_tenant = replace(left, tenants=(tenant,))
            self.add(table, replace(of_tenant, starts_s=with_rows(of_tenant)), before)
        return replace(left, apart=tuple((tenant, start) for tenant in sorted(self._works) for start in sorted(starts)))

    def compute(self, run: Callable[[str, Piece], None], is_over: Callable[[], bool]) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Call ``run`` for tables and pieces until ``is_over()``, and yield the table and the periods (Unix s) that are complete then.

        A tenant of which something fails has no further turn in this call. At the end the first such error is raised, at once a
        ``StoreError`` without a code: the store is away.
        """
        failed = dict[str, StoreError]()
        while len(failed) < len(self._works):
            tenant = next(name for name in self._works if name not in failed)
            try:
                complete = self._step(tenant, run)
            except StoreError as error:
                if not error.code:
                    raise
                failed[tenant], complete = error, None
            if complete is not None:
                yield complete
            if is_over():
                break
        if failed:
            raise next(iter(failed.values()))

    def _step(self, tenant: str, run: Callable[[str, Piece], None]) -> tuple[str, NDArray[np.int64]] | None:
        """Compute or divide the tenant's next piece. Return the table and the periods that are complete now, if any are."""
        # The tenant's next turn is behind those of the others.
        works = self._works[tenant] = self._works.pop(tenant)
        work = self._first(works)
        piece = work.next
        # If only this piece cannot be computed, the tenant's other work has the next turn.
        work.failures += 1
        is_computed = self._is_computed(piece, partial(run, work.table))
        work.failures = 0
        if not is_computed:
            self._halve(works, work)
            return None
        work.next = replace(piece, number=piece.number + 1)
        if work.next.number < piece.shares:
            return None
        self._complete(tenant, works, work)
        return work.table, piece.starts_s

    def progress(self, found: Progress) -> Progress:
        """Return the progress that excludes nothing that waits; ``found`` if nothing does."""
        return min([found, *(work.before for works in self._works.values() for work in works)])

    def _is_computed(self, piece: Piece, run: Callable[[Piece], None]) -> bool:
        """Return False if a piece is refused and must be divided. Raises ``StoreUnavailable`` if the store has no memory for any of the
        smallest pieces that are tried then: nothing is divided."""
        if fits(piece, run):
            return True
        # In order, nothing is computed before the first period.
        firsts = range(1 if self._in_order else len(piece.starts_s))
        try_smallest([replace(piece, starts_s=piece.starts_s[first:]) for first in firsts], run)
        return False

    def _first(self, works: list[_Work]) -> _Work:
        """Return the work that is next; with ``in_order`` without its periods after the first one of another work."""
        if not self._in_order:
            return min(works, key=lambda each: (each.failures, each.next.shares))
        work, *others = sorted(works, key=lambda each: int(each.next.starts_s[0]))
        starts_s = work.next.starts_s
        older = starts_s < min((each.next.starts_s[0] for each in others), default=starts_s[-1] + 1)
        if not older.all():
            works.append(replace(work, next=replace(work.next, starts_s=starts_s[~older])))
            work.next = replace(work.next, starts_s=starts_s[older])
        return work

    def _halve(self, works: list[_Work], work: _Work) -> None:
        """Divide the periods, of which the newer ones come first unless ``in_order``, or the keys: all shares have one size."""
        first, second = (replace(work, next=half) for half in work.next.halves())
        works.remove(work)
        works += [first] if len(work.next.starts_s) == 1 else [second, first]

    def _complete(self, tenant: str, works: list[_Work], work: _Work) -> None:
        shares, starts_s = work.next.shares, work.next.starts_s
        works.remove(work)
        if shares > 1:
            _log.warning("%s: the period from %d (Unix s) of a tenant was computed in %d pieces", work.table, starts_s[0], shares)
        if work.changed is not None:
            works.append(_Work(work.table, Piece(starts_s, tenants=(tenant,)), work.changed))
        elif not works:
            del self._works[tenant]
