"""Reads rows about several engines with one query for many of them: each engine's rows within a separate window of time.

Some hundred engines share a query. The result does not depend on which engines share it. The module knows no table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legato_ingest.attribution.load.engine_ids import is_one_of
from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, unquoted

__all__ = ["ENGINE_NS_SPARSE", "Rows", "Window", "Windows", "batches_of", "columns_of", "rows_by_engine", "sample_tables", "span_of"]

Ints = NDArray[np.int64]
Rows = dict[str, NDArray[Any]]
"""Columns by name. Unknown numbers are NaN, strings are bytes."""
Window = tuple[int, int]
"""Two times in ns, both included."""
Windows = Mapping[EngineKey, Window]

# Limits of one query: the number of engines, and that number times the stretch of time, which bounds the memory (16,000 s of 100 steps/s
# are 140 MB). After a query that found few rows the next one may be larger.
_ENGINES_MAX = 2_048
_ENGINE_NS_MAX = 16_000 * 1_000_000_000
_FEW_ROWS = 1_000_000
ENGINE_NS_SPARSE = 64_000 * 1_000_000_000
"""The limit (ns) of a query for rows of which an engine has few: those of streams."""
# No query returns more rows than this (350 MB of steps). An engine that has more in its window is left out, as one without records.
_ROWS_MAX = 4_000_000
# The same for samples, which become Python objects (200 MB). An engine with eight GPUs, sampled ten times a second, has 340,000 in the
# longest window.
_SAMPLES_MAX = 400_000
# Engines share a query if it reads at most so many times the longest of their windows.
_STRETCH_MAX = 2


def batches_of(windows: Windows, engine_ns_max: int = _ENGINE_NS_MAX) -> Iterator[dict[EngineKey, Window]]:
    """Divide engines into those that share a query: their windows are near each other.

    ``engine_ns_max``: the limit of the number of engines times their stretch of time (ns).
    """
    batch: dict[EngineKey, Window] = {}
    begin = end = longest = 0
    for key, (low, high) in sorted(windows.items(), key=lambda item: (item[1], item[0])):
        stretch = max(end, high) - begin
        is_far = stretch > _STRETCH_MAX * max(longest, high - low)
        if batch and (is_far or len(batch) == _ENGINES_MAX or (len(batch) + 1) * stretch > engine_ns_max):
            yield batch
            batch = {}
        if not batch:
            begin, end, longest = low, high, 0
        batch[key] = low, high
        end, longest = max(end, high), max(longest, high - low)
    if batch:
        yield batch


def span_of(windows: Windows) -> Window:
    """Return the window that contains all of these."""
    return min(low for low, _ in windows.values()), max(high for _, high in windows.values())


def rows_by_engine(store: Store, sql: str, windows: Windows, time: str) -> dict[EngineKey, Rows]:
    """Return the rows of each engine within its window, by ``at_ns``; engines without rows, or with too many, are left out.

    ``sql`` selects ``tenant``, ``engine_id``, ``at_ns`` and other columns. It has places for ``{which}``, the condition on the engine, and
    ``{inside}``, the condition on the column ``time``.
    """
    out: dict[EngineKey, Rows] = {}
    left, engine_ns_max, dense_ns_max = dict(windows), _ENGINE_NS_MAX, _ENGINE_NS_MAX
    while left:
        batch = next(batches_of(left, engine_ns_max))
        low, high = span_of(batch)
        limited = f"SELECT * FROM ({sql.format(which=is_one_of(batch), inside=between_ns(time, low, high))}) LIMIT {_ROWS_MAX + 1}"
        table = store.select_arrow(limited)
        if table.num_rows > _ROWS_MAX:
            # Half of the engines, or none of the one.
            engine_ns_max = dense_ns_max = min(_ENGINE_NS_MAX, len(batch) * (high - low) // 2)
            is_divisible = len(batch) > 1 and high > low
            left = left if is_divisible else {key: window for key, window in left.items() if key not in batch}
            continue
        is_sparse = table.num_rows * ENGINE_NS_SPARSE <= _FEW_ROWS * len(batch) * (high - low)
        engine_ns_max = ENGINE_NS_SPARSE if is_sparse else dense_ns_max
        out.update(_split(table, batch))
        left = {key: window for key, window in left.items() if key not in batch}
    return out


def sample_tables(
    store: Store, sql: Callable[[Sequence[tuple[str, str]]], str], keys: Collection[tuple[str, str]]
) -> Iterator[tuple[Sequence[tuple[str, str]], pa.Table]]:
    """Yield samples about engines or hosts (each a tenant and an id), with the keys that they are about: together 400,000 rows at most.

    A key that has more alone is left out, as one without samples. ``sql`` selects the rows about some keys, in the order of the result.
    """
    left = [sorted(keys)] if keys else []
    while left:
        part = left.pop()
        table = store.select_arrow(f"{sql(part)}\nLIMIT {_SAMPLES_MAX + 1}")
        middle = len(part) // 2
        if table.num_rows <= _SAMPLES_MAX:
            yield part, table
        elif middle:
            left += [part[middle:], part[:middle]]


def columns_of(table: pa.Table) -> Rows:
    """Return the columns of an Arrow table."""
    return {name: np.asarray(table[name].combine_chunks().to_numpy(zero_copy_only=False)) for name in table.column_names}


def _split(table: pa.Table, windows: Windows) -> Iterator[tuple[EngineKey, Rows]]:
    """Yield the rows of each engine within its window, in the order of the table."""
    if not table.num_rows:
        return
    tenants, engines = (pc.dictionary_encode(table[name].combine_chunks()) for name in ("tenant", "engine_id"))
    codes = _codes(tenants).astype(np.int64) * len(engines.dictionary) + _codes(engines)
    columns = columns_of(table.drop_columns(["tenant", "engine_id"]))
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    for code, rows in zip(present.tolist(), np.split(order, starts[1:]), strict=True):
        tenant, engine = divmod(code, len(engines.dictionary))
        key = str(unquoted(tenants.dictionary[tenant].as_py())), str(unquoted(engines.dictionary[engine].as_py()))
        if key not in windows:
            continue
        low, high = windows[key]
        at = columns["at_ns"][rows]
        own = rows[(at >= low) & (at <= high)]
        if len(own):
            yield key, {name: column[own] for name, column in columns.items()}


def _codes(encoded: pa.DictionaryArray) -> Ints:
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False))
