"""Statements of rollups in pieces, each of which takes little memory in the store.

A small request can declare keys of many kilobytes for each of its rows, so the memory of a statement does not follow the number of rows.
A statement that takes more than its limit is refused by ClickHouse, and run for half of its tenants, or of its periods; for a single one,
for half of its keys. Nothing is counted before, so usual statements cost no more. The smallest piece has no limit: a rollup that takes much
memory once is better than one that fails for ever. The module contains no SQL of a rollup.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreUnavailable
from legato_ingest.storage.sql import quoted_all, tuples

__all__ = ["Piece", "by_tenant", "fits", "try_smallest"]

_MEMORY_MAX_BYTES = 256 * 2**20
_SHARES_MAX = 64
# If this many tenants or periods are refused and none is computed, they show whether the store has memory at all.
_TRIED_MAX = 8
_HASHES = 2**64


@dataclass(frozen=True, slots=True)
class Piece:
    """Periods (their starts, Unix s, ascending, at least one), and share ``number`` of ``shares`` of the keys by their hash.

    ``tenants``: of these tenants only (at least one; None: of all). ``apart``: without these, each a tenant and the start of a period.
    """

    starts_s: NDArray[np.int64]
    number: int = 0
    shares: int = 1
    tenants: tuple[str, ...] | None = None
    apart: tuple[tuple[str, int], ...] = ()

    def rows(self, start: str) -> str:
        """Return the SQL condition that a row with the column ``tenant``, in the period with this start (SQL, Unix s), is in the piece."""
        # The tenant comes first in all primary keys, so rows of other tenants are not read.
        of_tenants = "1" if self.tenants is None else f"tenant IN ({quoted_all(self.tenants)})"
        if not self.apart:
            return of_tenants
        names, starts_s = zip(*self.apart, strict=True)
        cells = tuples([pa.chunked_array([pa.array(names, pa.string())]), pa.chunked_array([pa.array(starts_s, pa.int64())])])
        return f"{of_tenants} AND (tenant, toInt64({start})) NOT IN ({cells})"

    def keys(self, hashed: str) -> str:
        """Return the SQL condition that a key with this hash, an expression of 64 bits, is in the piece."""
        if self.shares == 1:
            return "1"
        low, end = (at * _HASHES // self.shares for at in (self.number, self.number + 1))
        return f"({hashed} BETWEEN {low} AND {end - 1})"

    def of(self, tenants: Sequence[str]) -> Piece:
        """Return the part of these tenants."""
        names = frozenset(tenants)
        return replace(self, tenants=tuple(tenants), apart=tuple(cell for cell in self.apart if cell[0] in names))

    def since(self, kept_s: int) -> Piece | None:
        """Return the part of the periods that begin at ``kept_s`` (Unix s) or later, if there are any."""
        kept = self.starts_s[self.starts_s >= kept_s]
        return replace(self, starts_s=kept) if len(kept) else None

    @property
    def is_smallest(self) -> bool:
        """Whether the piece is not divided, so that its statement has no limit."""
        return len(self.starts_s) == 1 and self.shares >= _SHARES_MAX

    @property
    def smallest(self) -> Piece:
        """The first of the smallest pieces of this one."""
        return replace(self, starts_s=self.starts_s[:1], number=self.number * _SHARES_MAX // self.shares, shares=_SHARES_MAX)

    @property
    def settings(self) -> str:
        """The setting for the memory of its statement; 0 is no limit."""
        return f"max_memory_usage = {0 if self.is_smallest else _MEMORY_MAX_BYTES}"

    def halves(self) -> tuple[Piece, Piece]:
        """Return both halves of the periods, or of the keys of a single period."""
        middle = len(self.starts_s) // 2
        if middle:
            return replace(self, starts_s=self.starts_s[:middle]), replace(self, starts_s=self.starts_s[middle:])
        first, shares = 2 * self.number, 2 * self.shares
        return replace(self, number=first, shares=shares), replace(self, number=first + 1, shares=shares)


def fits(piece: Piece, run: Callable[[Piece], None]) -> bool:
    """Call ``run``. Return False if the store refused it for its memory; then it may have written a part. Raises ``StoreUnavailable``."""
    try:
        run(piece)
    except StoreUnavailable as error:
        if error.code != MEMORY_LIMIT_EXCEEDED or piece.is_smallest:
            raise
        return False
    return True


def by_tenant(
    whole: Piece, run: Callable[[Piece], None], tenants: Callable[[Piece], Sequence[str]], is_stopping: Callable[[], bool]
) -> list[Piece]:
    """Call ``run`` for a piece, again for fewer tenants where it is refused. Return the refused pieces, each of one tenant, for later.

    ``tenants`` returns the tenants that have rows in a piece. Raises ``StoreUnavailable`` if the store has no memory for any of several
    tenants: to divide all of them would take hours of work once it has memory again. The whole can be tried again then. Few tenants wait
    in any case, because each may need more than the store ever has. Raises it, too, if ``is_stopping()`` before a piece is divided.
    """
    left, refused, has_memory = [whole], list[Piece](), False
    while left:
        piece = left.pop()
        if fits(piece, run):
            has_memory = True
            continue
        if is_stopping():
            raise StoreUnavailable("the server is stopping")
        # In no order: whatever the names of those that never fit, they are not the first ones.
        names = random.sample(each := tenants(piece), len(each)) if piece.tenants is None else piece.tenants
        if len(names) > 1:
            left += [piece.of(part) for part in (names[: len(names) // 2], names[len(names) // 2 :])]
        else:
            refused += [piece.of(names)] if names else []
            if len(refused) == _TRIED_MAX and not has_memory:
                try_smallest(refused, run)
                has_memory = True
    return refused


def try_smallest(refused: Sequence[Piece], run: Callable[[Piece], None]) -> None:
    """Call ``run`` for the smallest piece of some of these until one is computed: each takes much memory then, and the store has some.

    Raises ``StoreUnavailable`` if none is. Of each the piece is of the first period, before which nothing of its tenant waits.
    """
    tried = refused[:: -(-len(refused) // _TRIED_MAX)]
    for number, piece in enumerate(tried, 1):
        try:
            return run(piece.smallest)
        except StoreUnavailable as error:
            if error.code != MEMORY_LIMIT_EXCEEDED or number == len(tried):
                raise
