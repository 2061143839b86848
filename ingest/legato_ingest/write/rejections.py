"""Deduplication of rows of ``rejected``: a request that is sent again has the same bad items.

One body of 70 KB can be thousands of bad items, so a group of requests has a hundred thousand. Their keys are columns of Arrow from the
converter to ClickHouse and back: as Python objects they held the interpreter for 0.1 s at a time, for which every acknowledgement waited.
The module inserts nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.storage import Store
from legato_ingest.storage.sql import integers, quoted
from legato_ingest.write.dedup import halving

__all__ = ["new_rejections", "rejection_keys", "rejections_query", "stored_rejections"]

_IDS = ("trace_id", "span_id", "span_sha256")
# Their widths are fixed, and `reason` is a word of Legato's, so the tenant alone may contain the separator: it is the last one.
_KEY = (*_IDS, "rev", "reason", "tenant")
_SEPARATOR = b"\0"


def new_rejections(store: Store, rows: pa.Table) -> pa.Table:
    """Return the rows that the store does not hold; of rows with equal keys the first one."""
    keys = rejection_keys(rows)
    is_first = _is_first(keys)
    rows, keys = rows.filter(is_first), keys.filter(is_first)
    return rows.filter(pc.invert(pc.is_in(keys, value_set=stored_rejections(store, rows))))


def rejection_keys(rows: pa.Table) -> pa.Array:
    """Return the key of each row as binary: ids, hash, rev, reason and tenant."""
    columns = [(rows[name].cast(pa.string()) if name == "rev" else rows[name]).cast(pa.binary()) for name in _KEY]
    return pc.binary_join_element_wise(*(column.combine_chunks() for column in columns), _SEPARATOR)


def stored_rejections(store: Store, rows: pa.Table) -> pa.Array:
    """Return the keys of those rows that the store holds. One query for each tenant and reason."""
    found = [rejection_keys(rows.slice(0, 0))]
    for pair in rows.select(["tenant", "reason"]).group_by(["tenant", "reason"]).aggregate([]).to_pylist():
        own = rows.filter(pc.and_(pc.equal(rows["tenant"], pair["tenant"]), pc.equal(rows["reason"], pair["reason"])))
        found += [rejection_keys(table) for table in halving(lambda rows: store.select_arrow(rejections_query(rows)), own)]
    return pa.concat_arrays(found)


def rejections_query(rows: pa.Table) -> str:
    """Return the query for the stored rows with the keys of these rows, which share tenant and reason.

    It restricts the columns of the sorting key themselves and not functions of them. The ids are sent as one hexadecimal string for each
    column: with 100,000 keys, ClickHouse parses and looks up this form about four times faster than a list of tuples.
    """
    tenant, reason = rows["tenant"][0].as_py(), rows["reason"][0].as_py()
    widths = [rows.schema.field(name).type.byte_width for name in _IDS]
    values = (
        f"toFixedString(substring(unhex('{_hexadecimal(rows[name])}'), 1 + {width} * number, {width}), {width})"
        for name, width in zip(_IDS, widths, strict=True)
    )
    return f"""
        SELECT {", ".join(_KEY)} FROM rejected
        WHERE tenant = {quoted(tenant)} AND reason = {quoted(reason)}
          AND rev IN ({integers(pc.unique(rows["rev"]).to_numpy(zero_copy_only=False).astype(np.uint64))})
          AND ({", ".join(_IDS)}) IN (SELECT {", ".join(values)} FROM numbers({rows.num_rows}))"""


def _is_first(keys: pa.Array) -> pa.Array:
    """Return for each key whether none before it is equal."""
    # A dictionary numbers its values in the order in which they appear, so a new value has a higher number than all before it.
    numbers = keys.dictionary_encode().indices.to_numpy()
    return pa.array(np.diff(np.maximum.accumulate(numbers), prepend=-1) > 0)


def _hexadecimal(column: pa.ChunkedArray) -> str:
    """Return the values of a column of a fixed width, one after another."""
    whole: pa.Array = column.combine_chunks()
    width, (_, values) = whole.type.byte_width, whole.buffers()
    return bytes(values[whole.offset * width : (whole.offset + len(whole)) * width]).hex()
