"""The chunking worker: it passes the 1-minute rollups of each stratum to the detector and writes its findings to `chunking_changes`.

The detector is deterministic, so every run passes it all minutes, and the result replaces the earlier one: a finding keeps its row while
its numbers become final, and is withdrawn (``found`` = false) if late data disproves it. The detection itself is in `detector`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legato_ingest.chunking.detector import Change, find_changes
from legato_ingest.chunking.series import DAY_S, Minutes
from legato_ingest.errors import StoreError
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicWorker, always
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.sql import quoted, unquoted

__all__ = ["ChunkingWorker"]

_log = logging.getLogger("legato")
_FIRST_S = 20.0
# Only the busiest strata are tested: a service that puts an id into its route creates a stratum per id.
_STRATA_MAX = 1_000
# The minutes of all strata that one query reads, some 200 MB; a stratum of more is read alone.
_MINUTES_AT_ONCE = 400_000
# With fewer streams of known token rate before or after a change, its kind is "rate unknown".
_RATES_MIN = 30
_STRATUM = ("tenant", "vantage", "service_name", "model", "provider", "route")
_KNOWN = "share_streams > 0"
_COLUMNS = {
    "minute_s": "toInt64(toUnixTimestamp(minute))",
    "streams": "toInt64(sum(share_streams))",
    "share_sum": "sum(multi_token_share_sum)",
    "chunking_streams": "toInt64(sum(token_chunks))",
    "tokens_per_chunk_sum": "toFloat64(sum(tokens))",
    "rate_streams": "toInt64(sum(log_rate_streams))",
    "log_rate_sum": "sum(log_rate_sum)",
    "log_rate_sq_sum": "sum(log_rate_sq_sum)",
}
_SECONDS = pa.timestamp("s", "UTC")


class ChunkingWorker(PeriodicWorker[int]):
    """Tests all strata for changes periodically. Owns ``store``, a separate handle. Without ``start()`` it runs only on ``step()``.

    ``step()`` returns the number of changes found.
    """

    def __init__(self, store: Store, settings: Settings, metrics: Metrics, my_turn: Callable[[], bool] = always) -> None:
        first_s = min(_FIRST_S, settings.chunking_every_s)
        super().__init__("chunking", store, settings.chunking_every_s, metrics, first_s=first_s, my_turn=my_turn)
        self._store, self._metrics = store, metrics

    def _run(self) -> int:
        found = 0
        for strata in self._strata():
            for stratum, columns in self._minutes(strata):
                if self.stopping:
                    return found
                try:
                    found += self._test(stratum, Minutes(**columns))
                except StoreError:
                    raise
                except Exception as error:
                    # One stratum that cannot be tested must not keep the others from being tested.
                    self._metrics.errors.labels("chunking", type(error).__name__).inc()
                    _log.error("the chunking of one stratum could not be tested, and this run skips it: %s", error)
        return found

    def _test(self, stratum: Sequence[str], minutes: Minutes) -> int:
        """Test one stratum and write its changes. Return their number."""
        changes = find_changes(minutes)
        self._write(stratum, minutes.minute_s, changes)
        return len(changes)

    def _strata(self) -> Iterator[list[tuple[str, ...]]]:
        """Yield the strata, the busiest first, in groups that one query reads."""
        names = ", ".join(_STRATUM)
        rows = self._store.select(
            f"SELECT {names}, uniqExact(minute) FROM stream_minutes FINAL WHERE {_KNOWN}"
            f" GROUP BY {names} ORDER BY sum(share_streams) DESC, {names} LIMIT {_STRATA_MAX}"
        )
        group, minutes = list[tuple[str, ...]](), 0
        for *stratum, own in rows:
            if group and minutes + int(own) > _MINUTES_AT_ONCE:
                yield group
                group, minutes = [], 0
            group.append(tuple(map(str, stratum)))
            minutes += int(own)
        if group:
            yield group

    def _minutes(self, strata: Sequence[Sequence[str]]) -> Iterator[tuple[list[str], dict[str, NDArray[Any]]]]:
        """Yield the columns of ``Minutes`` of each of these strata. One query reads several: it passes the minutes of all in any case."""
        names = ", ".join(_STRATUM)
        chosen = ", ".join(f"{sql} AS c_{name}" for name, sql in _COLUMNS.items())
        listed = ", ".join(f"({', '.join(map(quoted, stratum))})" for stratum in strata)
        table = self._store.select_arrow(
            f"SELECT {', '.join(f'{name}::String AS s_{name}' for name in _STRATUM)}, {chosen} FROM stream_minutes FINAL"
            f" WHERE {_KNOWN} AND ({names}) IN ({listed}) GROUP BY {names}, minute ORDER BY {names}, minute"
        )
        if not table.num_rows:
            return
        columns = {name: np.asarray(table[f"c_{name}"].combine_chunks().to_numpy(zero_copy_only=False)) for name in _COLUMNS}
        keys = [table[f"s_{name}"].combine_chunks() for name in _STRATUM]
        codes = np.stack([np.asarray(pc.dictionary_encode(key).indices.to_numpy(zero_copy_only=False)) for key in keys])
        starts = [0, *(np.flatnonzero((np.diff(codes, axis=1) != 0).any(axis=0)) + 1).tolist(), table.num_rows]
        for first, end in pairwise(starts):
            stratum = [str(unquoted(key[first].as_py())) for key in keys]
            yield stratum, {name: values[first:end] for name, values in columns.items()}

    def _write(self, stratum: Sequence[str], minutes_s: NDArray[np.int64], changes: Sequence[Change]) -> None:
        """Write the changes, each under the date of its stored row if there is one within a day. Withdraw the other stored findings."""
        stored = self._store.select(
            "SELECT toUnixTimestamp(changed_at), direction FROM chunking_changes FINAL"
            f" WHERE found AND {_is(stratum)} AND changed_at >= toDateTime({int(minutes_s[0]) + DAY_S}, 'UTC') ORDER BY changed_at"
        )
        dates = {(int(at), str(unquoted(direction))) for at, direction in stored}
        rows = []
        for change in changes:
            near = [each for each in dates if each[1] == change.direction and abs(each[0] - change.changed_at_s) <= DAY_S]
            date = min(near, key=lambda each: abs(each[0] - change.changed_at_s)) if near else (change.changed_at_s, change.direction)
            dates.discard(date)
            rows.append(_row(stratum, date[0], change))
        rows += [_withdrawn(stratum, *date) for date in sorted(dates)]
        if rows:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            table = pa.table(
                {**columns, "detected_at": pa.array([time.time_ns() // 1_000_000] * len(rows)).cast(pa.timestamp("ms", "UTC"))}
            )
            for name in ("changed_at", "alarmed_at"):
                table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(_SECONDS))
            self._store.insert("chunking_changes", table)


def _is(stratum: Sequence[str]) -> str:
    return " AND ".join(f"{name} = {quoted(value)}" for name, value in zip(_STRATUM, stratum, strict=True))


def _row(stratum: Sequence[str], changed_at_s: int, change: Change) -> dict[str, Any]:
    known = min(change.rate_streams_before, change.rate_streams_after) >= _RATES_MIN and not isnan(change.rate_ratio)
    return {
        **dict(zip(_STRATUM, stratum, strict=True)),
        "changed_at": changed_at_s,
        "found": True,
        "alarmed_at": change.alarmed_at_s,
        "kind": change.kind if known else "rate unknown",
        "direction": change.direction,
        "share_before": change.before,
        "share_after": change.after,
        "tokens_per_chunk_before": change.tokens_per_chunk_before,
        "tokens_per_chunk_after": change.tokens_per_chunk_after,
        "rate_ratio": change.rate_ratio,
        "streams_before": change.streams_before,
        "streams_after": change.streams_after,
        "log_e": change.log_e,
    }


def _withdrawn(stratum: Sequence[str], changed_at_s: int, direction: str) -> dict[str, Any]:
    numbers = ("share_before", "share_after", "tokens_per_chunk_before", "tokens_per_chunk_after", "rate_ratio", "log_e")
    return {
        **dict(zip(_STRATUM, stratum, strict=True)),
        "changed_at": changed_at_s,
        "found": False,
        "alarmed_at": 0,
        "kind": "",
        "direction": direction,
        **dict.fromkeys(numbers, 0.0),
        "streams_before": 0,
        "streams_after": 0,
    }
