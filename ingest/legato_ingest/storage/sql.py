"""Values in the text of Legato's own statements, and values of Arrow results.

A value from outside is written as hexadecimal digits or as a whole number, so it can contain anything and is never parsed as SQL.
Statements of readers do not use this: they bind parameters. Where ClickHouse accepts nothing but a string literal, see
``quoting.literal``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legato_ingest.columns import NS_MAX

__all__ = ["after_until_ms", "between_ns", "digits_of", "integers", "quoted", "quoted_all", "texts", "time_ns", "tuples", "unquoted"]

# Longer lists are sent as one string: ClickHouse's parser takes some KB for each literal, and its analyzer refuses 500,000 nodes.
_LITERALS_MAX = 1_000


def quoted(value: str | bytes) -> str:
    """Return an expression for a string."""
    return f"unhex('{(value.encode() if isinstance(value, str) else value).hex()}')"


def quoted_all(values: Iterable[str | bytes]) -> str:
    """Return expressions for strings, separated by commas, for ``IN (…)``. For as many as a sender may choose, use ``texts``."""
    return ", ".join(map(quoted, values))


def texts(values: Sequence[str | bytes]) -> str:
    """Return an expression for strings of any number and any bytes, for ``IN (…)``. It must not be empty."""
    if len(values) <= _LITERALS_MAX:
        return quoted_all(values)
    return f"SELECT unhex(arrayJoin({digits_of(values)}))"


def digits_of(values: Iterable[str | bytes]) -> str:
    """Return an expression for the array of the hexadecimal digits of strings. It is one literal, whatever their number."""
    return "splitByChar(',', '" + ",".join((value.encode() if isinstance(value, str) else value).hex() for value in values) + "')"


def integers(values: NDArray[np.int64] | NDArray[np.uint64]) -> str:
    """Return an expression for whole numbers, for ``IN (…)``. It must not be empty."""
    if len(values) <= _LITERALS_MAX:
        return ",".join(map(str, values.tolist()))
    return f"SELECT {_each_integer(values)} FROM numbers({len(values)})"


def tuples(columns: Sequence[pa.ChunkedArray]) -> str:
    """Return a subquery for rows of values, for ``(a, b) IN (…)``: each column is a literal or three, whatever the number of rows.

    Columns of texts, of bytes of a fixed width, and of whole numbers or times of 64 bits, without nulls.
    """
    return f"SELECT {', '.join(_each(column.combine_chunks()) for column in columns)} FROM numbers({len(columns[0])})"


def _each(column: pa.Array) -> str:
    """Return an expression for the value of each ``number``."""
    if pa.types.is_string(column.type):
        return _each_text(column)
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        content = bytes(column.buffers()[1][column.offset * width : (column.offset + len(column)) * width])
        return f"toFixedString(substring(unhex('{content.hex()}'), 1 + {width} * number, {width}), {width})"
    kind = pa.uint64() if pa.types.is_unsigned_integer(column.type) else pa.int64()
    return _each_integer(column.cast(kind).to_numpy())


def _each_text(column: pa.Array) -> str:
    """Return an expression for texts: each different one is sent once, with its place in each row."""
    different = column.dictionary_encode()
    lengths: NDArray[np.int64] = pc.binary_length(different.dictionary).cast(pa.int64()).to_numpy()
    starts, rows = np.cumsum(lengths) - lengths, different.indices.to_numpy()
    content = "".join(different.dictionary.to_pylist())
    return f"substring({quoted(content)}, 1 + {_each_integer(starts[rows])}, {_each_integer(lengths[rows])})"


def _each_integer(values: NDArray[np.int64] | NDArray[np.uint64]) -> str:
    kind = "UInt64" if values.dtype == np.uint64 else "Int64"
    digits = values.astype(values.dtype.newbyteorder("<")).tobytes().hex()
    return f"reinterpretAs{kind}(substring(unhex('{digits}'), 1 + 8 * number, 8))"


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
