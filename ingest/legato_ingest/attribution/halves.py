"""What the store refuses for all tenants, or has no memory for, is done for half of them, and then for a quarter, so that one tenant's rows
stop no other's.

The module reads nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreError, StoreRefused, release
from legato_ingest.storage.tenant_parts import HALVINGS_MAX, in_part

__all__ = ["Short", "by_halves"]

_log = logging.getLogger("legato")
Result = TypeVar("Result")
Short = dict[int, StoreError]
"""The smallest parts that the store has no memory for, by number, with the error."""

# Of a tenant's path one half each is without it, and succeeds. If the store refuses more than this one after the other, the cause is not
# the rows of some tenants. Then the run fails, and the next one repeats it.
_REFUSALS_IN_ROW_MAX = 128
# To find a tenant takes 20 refusals, and less for each of several: this is enough for 400. What is refused of more has another cause.
_REFUSALS_MAX = 6_000


def by_halves(
    act: Callable[[str], Result], tenants: str, failed: Callable[[Exception], None], short: Short | None = None
) -> Iterator[Result]:
    """Yield ``act`` of the condition ``tenants`` on `tenant`, or of parts of it where the store refuses the whole.

    The smallest parts that are refused are left out, and at the end ``failed`` is called with their errors. A statement that exceeds a
    limit of memory counts as refused; the smallest parts with this error are added to ``short`` instead, if it is given. Raises other
    errors, and the last one if too many parts are refused; then no part is left out or added.
    """
    refusals, in_row, left, refused = 0, 0, [(0, 0)], list[tuple[int, StoreError]]()
    while left:
        # The parts of a part come before others, so a half that succeeds soon shows that the store does not refuse everything.
        number, halvings = left.pop()
        try:
            result = act(f"{tenants} AND {in_part(number, halvings)}" if halvings else tenants)
        except StoreError as error:
            if not isinstance(error, StoreRefused) and error.code != MEMORY_LIMIT_EXCEEDED:
                raise
            refusals, in_row = refusals + 1, in_row + 1
            if in_row > _REFUSALS_IN_ROW_MAX or refusals > _REFUSALS_MAX:
                raise
            if halvings == 0:
                _log.warning("the store refused a statement about several tenants, which follows for half of them each: %s", error)
            if halvings < HALVINGS_MAX:
                left += [(number + (half << halvings), halvings + 1) for half in (1, 0)]
                continue
            # Its frames hold the streams that were loaded.
            release(error)
            refused.append((number, error))
            continue
        in_row = 0
        yield result
    for number, reason in refused:
        if short is not None and reason.code == MEMORY_LIMIT_EXCEEDED:
            short[number] = reason
        else:
            failed(reason)
