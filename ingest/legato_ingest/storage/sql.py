"""Values in the text of Legato's own statements, and values of Arrow results.

A value from outside is written as hexadecimal digits or as a whole number, so it can contain anything and is never parsed as SQL.
Statements of readers do not use this: they bind parameters. Where ClickHouse accepts nothing but a string literal, see
``quoting.literal``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.columns import NS_MAX

__all__ = ["after_until_ms", "between_ns", "integers", "quoted", "quoted_all", "time_ns", "unquoted"]

# Longer lists are sent as one string: ClickHouse's parser takes some KB for each literal.
_LITERALS_MAX = 1_000


def quoted(value: str | bytes) -> str:
    """Return an expression for a string."""
    return f"unhex('{(value.encode() if isinstance(value, str) else value).hex()}')"


def quoted_all(values: Iterable[str | bytes]) -> str:
    """Return expressions for strings, separated by commas, for ``IN (…)``."""
    return ", ".join(map(quoted, values))


def integers(values: NDArray[np.int64] | NDArray[np.uint64]) -> str:
    """Return an expression for whole numbers, for ``IN (…)``. It must not be empty."""
    if len(values) <= _LITERALS_MAX:
        return ",".join(map(str, values.tolist()))
    kind = "UInt64" if values.dtype == np.uint64 else "Int64"
    digits = values.astype(values.dtype.newbyteorder("<")).tobytes().hex()
    return f"SELECT reinterpretAs{kind}(substring(unhex('{digits}'), 1 + 8 * number, 8)) FROM numbers({len(values)})"


def time_ns(ns: int) -> str:
    """Return an expression for a time in ns since the epoch, at least 0 and at most ``NS_MAX``.

    ClickHouse reads a larger number as a negative one, which is a time before 1970.
    """
    return f"fromUnixTimestamp64Nano({min(max(0, ns), NS_MAX)}, 'UTC')"


def between_ns(column: str, low_ns: int, high_ns: int) -> str:
    """Return the condition that a time is between two times, both included."""
    return f"{column} BETWEEN {time_ns(low_ns)} AND {time_ns(high_ns)}"


def after_until_ms(column: str, after_ms: int, until_ms: int) -> str:
    """Return the condition that a time is after ``after_ms`` and not after ``until_ms``: the rows that a worker has not processed yet."""
    low, high = (f"fromUnixTimestamp64Milli({moment}, 'UTC')" for moment in (after_ms, until_ms))
    return f"{column} > {low} AND {column} <= {high}"


def unquoted(value: Any) -> Any:
    """Return a value of an Arrow result with strings decoded: they are binary there."""
    return value.decode() if isinstance(value, bytes) else value
