"""What the store refuses for all tenants, or has no memory for, is done for half of them, and then for a quarter, so that one tenant's rows
stop no other's.

The module reads nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreError, StoreRefused

__all__ = ["by_halves"]

_log = logging.getLogger("legato")
Result = TypeVar("Result")

# A tenant is alone among some thousands in the last part, which is left out.
_HALVINGS_MAX = 16
# If the store refuses more than this, the cause is not the rows of some tenants. Then the run fails, and the next one repeats it.
_REFUSALS_MAX = 128


def by_halves(act: Callable[[str], Result], tenants: str, failed: Callable[[Exception], None]) -> Iterator[Result]:
    """Yield ``act`` of the condition ``tenants`` on `tenant`, or of parts of it where the store refuses the whole.

    The smallest parts that are refused are left out, and ``failed`` is called with their errors. Raises other errors, and the last one if
    too many parts are refused. A statement that exceeds a limit of memory counts as refused.
    """
    refusals, left = 0, [(tenants, 0)]
    while left:
        # All parts of one size come first: a store that has no memory for anything refuses too many of them before one is left out.
        part, halvings = left.pop(0)
        try:
            result = act(part)
        except StoreError as error:
            if not isinstance(error, StoreRefused) and error.code != MEMORY_LIMIT_EXCEEDED:
                raise
            refusals += 1
            if refusals > _REFUSALS_MAX:
                raise
            if halvings == _HALVINGS_MAX:
                failed(error)
            else:
                _log.warning("the store refused a statement about several tenants, which follows for half of them each: %s", error)
                left += [(f"{part} AND bitTest(cityHash64(tenant), {halvings}) = {half}", halvings + 1) for half in (0, 1)]
            continue
        yield result
