"""Statements of rollups in pieces, each of which takes little memory in the store.

A small request can declare keys of many kilobytes for each of its rows, so the memory of a statement does not follow the number of rows.
A statement that takes more than its limit is refused by ClickHouse, and run for half of its tenants, or of its periods; for a single one,
for half of its keys. Nothing is counted before, so usual statements cost no more. The smallest piece has no limit: a rollup that takes much
memory once is better than one that fails for ever. The module contains no SQL of a rollup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreUnavailable
from legato_ingest.storage.sql import quoted, quoted_all

__all__ = ["Piece", "by_tenant", "fits", "try_smallest"]

_MEMORY_MAX_BYTES = 256 * 2**20
_SHARES_MAX = 64
# If every tenant or period is refused, so many of them show whether the store has memory at all.
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
        cells = ", ".join(f"({quoted(tenant)}, {start_s})" for tenant, start_s in self.apart)
        return f"{of_tenants} AND (tenant, {start}) NOT IN ({cells})"

    def keys(self, hashed: str) -> str:
        """Return the SQL condition that a key with this hash, an expression of 64 bits, is in the piece."""
        if self.shares == 1:
            return "1"
        low, end = (at * _HASHES // self.shares for at in (self.number, self.number + 1))
        return f"({hashed} BETWEEN {low} AND {end - 1})"

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


def by_tenant(whole: Piece, run: Callable[[Piece], None], tenants: Callable[[Piece], Sequence[str]]) -> list[Piece]:
    """Call ``run`` for a piece, again for fewer tenants where it is refused. Return the refused pieces, each of one tenant, for later.

    ``tenants`` returns the tenants that have rows in a piece. Raises ``StoreUnavailable`` if the store has no memory for any of several
    tenants: to divide all of them would take hours of work once it has memory again. The whole can be tried again then.
    """
    left, refused, has_memory = [whole], list[Piece](), False
    while left:
        piece = left.pop()
        if fits(piece, run):
            has_memory = True
            continue
        names = tuple(tenants(piece) if piece.tenants is None else piece.tenants)
        if len(names) == 1:
            refused.append(replace(piece, tenants=names))
        else:
            parts = names[: len(names) // 2], names[len(names) // 2 :]
            left.extend(replace(piece, tenants=part) for part in parts if part)
    # A single one may need more than the store ever has. It waits beside the others, which may be in other pieces (``divided``).
    if len(refused) > 1 and not has_memory:
        try_smallest(refused, run)
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
