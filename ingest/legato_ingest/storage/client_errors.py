"""The errors of ClickHouse's driver as errors of the store, and what readers of one tenant see of them.

The module runs no statement and knows no client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from clickhouse_connect.driver.exceptions import ClickHouseError

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreError, StoreRefused, StoreUnavailable

__all__ = ["code_of", "translated", "without_values"]

# ClickHouse's error codes for conditions that can pass: memory, disk, too many parts, time-outs, locks, connections, and a KILL QUERY.
_TRANSIENT = frozenset(
    (33, 74, 75, 76, 159, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 319, 394, 425, 473, 499, 999, 1000, 1001)
)
_CODE, _NAME = re.compile(r"Code: (\d+)"), re.compile(r"\((\w+)\)\s*$")
# Error codes of a statement that fails whatever the rows are: syntax, names, types, settings, limits. Other messages may hold values.
_OF_STATEMENTS = frozenset(
    (*range(42, 49), 50, 53, 60, 62, 63, 73, 81, 115, 141, 158, 159, 160, 164, 167, 168, 179, 181, 184, 207, 215, 258, 307, 309, 352)
) | {386, 396, 403, 456, 457, 497, 721}
_TIMEOUT_EXCEEDED = 159
# The limit of memory, and how far a result is above its limit, which depends on the sizes of blocks.
_MAXIMUM, _REACHED = re.compile(r"maximum: ([\d.]+ \w+)"), re.compile(r", current (?:bytes|rows): [\d.]+(?: [A-Za-z]+)?")
# The statement as it is run, and the names that are like an unknown one.
_RUN = re.compile(r"(?::|\.)? (?:In scope|Maybe you meant:?) .*?(?=\.? \(\w+\)\s*$|$)", re.DOTALL)
# The driver wraps a server's error in a text with the server's address. Readers must not see the address.
_WRAPPING = re.compile(r"^Received ClickHouse exception, code: \d+, server response: | \(for url [^)]*\)$")
_NOT_SHOWN = "the store cannot answer now, for a reason that is not shown to readers of one tenant: try again"


def code_of(message: str) -> int:
    """Return ClickHouse's error code in one of its messages; 0 without one."""
    found = _CODE.search(message)
    return int(found.group(1)) if found else 0


@contextmanager
def without_values(tenant: str) -> Iterator[None]:
    """Hide values, sizes and parts in the errors of a tenant's statement: ClickHouse may have read rows of other tenants, too."""
    try:
        yield
    except StoreError as error:
        if tenant == ALL_TENANTS:
            raise
        message = _shown(error)
        raise StoreRefused(message, error.code) if isinstance(error, StoreRefused) else StoreUnavailable(message, error.code) from None


def _shown(error: StoreError) -> str:
    """Return what a reader of one tenant sees of an error."""
    message = str(error)
    if error.code in _OF_STATEMENTS:
        return _REACHED.sub("", _RUN.sub("", message))
    if isinstance(error.__cause__, ClickHouseError) and not error.code:
        # The driver's own text names the address of the store.
        return _NOT_SHOWN
    if error.code in (0, _TIMEOUT_EXCEEDED):
        return message
    if error.code == MEMORY_LIMIT_EXCEEDED:
        limit = _MAXIMUM.search(message)
        reason = f"the statement needs more memory than its limit{f' of {limit[1]}' if limit else ''}"
    elif isinstance(error, StoreUnavailable):
        reason = _NOT_SHOWN
    else:
        reason = "a function failed on a constant, or on the value of a row, which is not shown to readers of one tenant"
    name = _NAME.search(message)
    return f"Code: {error.code}. DB::Exception: {reason}.{f' ({name[1]})' if name else ''}"


@contextmanager
def translated() -> Iterator[None]:
    """Raise the driver's errors as ``StoreUnavailable`` (can pass) or ``StoreRefused`` (fails again)."""
    try:
        yield
    except ClickHouseError as error:
        message = _WRAPPING.sub("", str(error))
        code = code_of(message)
        if code in _TRANSIENT or not code:
            raise StoreUnavailable(message, code) from error
        raise StoreRefused(message, code) from error
    except OSError as error:
        raise StoreUnavailable(f"{type(error).__name__}: {error.strerror}") from error
