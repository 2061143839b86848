"""The expected content of the 1-minute and 1-hour rollups, computed in plain Python from the raw rows of a store.

The module shares no SQL with the rollups that it checks. It reads raw rows of `streams`, `verdicts`, `replays` and `engine_steps` and
aggregates them in simple loops. Only the hash of a client is computed by the store. The module writes nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from legato_ingest.storage import Store

__all__ = ["ALIVE", "differences", "expected", "rows_in", "rule_rows", "stored"]

Row = dict[str, Any]
Key = tuple[Any, ...]
Minutes = dict[Key, Row]

# The column of each table that is 0 in a row that counts nothing.
ALIVE = {"stream_minutes": "streams", "stall_minutes": "stalls", "but_for_minutes": "streams", "engine_minutes": "steps"}
HOURS = {"stream_hours": "stream_minutes", "stall_hours": "stall_minutes", "but_for_hours": "but_for_minutes"}
ALIVE |= {hours: ALIVE[minutes] for hours, minutes in HOURS.items()}
DIMENSIONS = ("vantage", "service_name", "model", "provider", "service_version", "route", "transport")
KEYS = {
    "stream_minutes": ("tenant", "minute", *DIMENSIONS, "emitter"),
    "stall_minutes": ("tenant", "minute", *DIMENSIONS, "engine_id", "cause", "confidence"),
    "but_for_minutes": ("tenant", "minute", *DIMENSIONS, "cause"),
    "engine_minutes": ("tenant", "minute", "engine_id"),
}
KEYS |= {hours: KEYS[minutes] for hours, minutes in HOURS.items()}
ERRORS = {"timeout", "upstream_error", "engine_abort", "abandoned"}
READERS = {"consumer", "slow_reader", "render"}
MINUTE_NS = 60 * 10**9
OVERDUE_NS = 30 * 10**9


def rows_in(store: Store, sql: str) -> list[Row]:
    """The rows of a query: times as integers in the unit of their column, strings as text, ids as bytes, maps as dictionaries."""
    table = store.select_arrow(sql)
    columns = {}
    for field in table.schema:
        column = table[field.name]
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.int64())
        is_id = pa.types.is_fixed_size_binary(field.type)
        values = column.to_pylist()
        columns[field.name] = values if is_id or _is_plain(column.type) else [_plain(value) for value in values]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def rule_rows(store: Store, sql: str, at_s: float) -> list[Row]:
    """The rows of an alert rule with the clock at ``at_s`` (unix s)."""
    assert "now()" in sql
    return rows_in(store, sql.replace("now()", f"toDateTime({round(at_s)}, 'UTC')"))


def _is_plain(kind: pa.DataType) -> bool:
    """Whether `_plain` returns all values of a type as they are. Timelines have millions."""
    of_each = kind.value_type if pa.types.is_list(kind) else kind
    return bool(pa.types.is_primitive(of_each) or pa.types.is_string(of_each))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        items = [_plain(item) for item in value]
        return dict(items) if items and all(isinstance(item, tuple) for item in items) else items
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value.decode() if isinstance(value, bytes) else value


def expected(store: Store, gap_us: int = 400_000, first_us: int = 2_000_000) -> dict[str, Minutes]:
    """The expected rows of all seven tables by key, without the time of computation. The SLO's limits are in µs."""
    streams, verdicts = rows_in(store, "SELECT * FROM streams"), rows_in(store, "SELECT * FROM verdicts FINAL")
    replays, steps = rows_in(store, "SELECT * FROM replays FINAL"), rows_in(store, "SELECT * FROM engine_steps FINAL")
    hashes = {
        row["client_hash"]: row["h"] for row in rows_in(store, "SELECT DISTINCT client_hash, cityHash64(client_hash) AS h FROM streams")
    }
    for row in streams:
        row["minute"] = row["start_time"] // MINUTE_NS * 60
        row["client"] = hashes[row["client_hash"]] if row["client_hash"] else 0
    minutes = {
        "stream_minutes": _stream_minutes(streams, verdicts, gap_us, first_us),
        "stall_minutes": _stall_minutes(streams, verdicts),
        "but_for_minutes": _but_for_minutes(streams, verdicts, replays),
        "engine_minutes": _engine_minutes(steps),
    }
    # The 1-hour rollups are the same sums over the streams of an hour.
    for row in streams:
        row["minute"] = row["minute"] // 3_600 * 3_600
    return {
        **minutes,
        "stream_hours": _stream_minutes(streams, verdicts, gap_us, first_us),
        "stall_hours": _stall_minutes(streams, verdicts),
        "but_for_hours": _but_for_minutes(streams, verdicts, replays),
    }


def stored(store: Store, table: str) -> Minutes:
    """The stored rows of a table by key, without the time of computation and without rows that count nothing."""
    rows = rows_in(store, f"SELECT * EXCEPT (rolled_at) FROM {table} FINAL WHERE {ALIVE[table]} > 0")
    return {_key(row, KEYS[table]): {name: value or 0 for name, value in row.items() if name not in KEYS[table]} for row in rows}


def differences(store: Store, gap_us: int = 400_000, first_us: int = 2_000_000) -> list[str]:
    """One line for each difference between the stored and the expected rollups; empty if there are none."""
    out = []
    for table, should in expected(store, gap_us, first_us).items():
        found = stored(store, table)
        out += [f"{table} {key}: missing" for key in should.keys() - found.keys()]
        out += [f"{table} {key}: not expected" for key in found.keys() - should.keys()]
        for key in should.keys() & found.keys():
            # The column `due_at` is not maintained in the 1-hour rollups.
            names = (should[key].keys() | found[key].keys()) - ({"due_at"} if table in HOURS else set())
            pairs = ((name, should[key].get(name), found[key].get(name)) for name in sorted(names))
            out += [f"{table} {key} {name}: {was!r}, expected {ought!r}" for name, ought, was in pairs if not _same(ought, was)]
        out += [f"{table}: {row} is not all zeros" for row in _empty_rows(store, table) if any(row.values())]
    return out


def _empty_rows(store: Store, table: str) -> list[Row]:
    """The rows that count nothing; all their columns should be 0 or empty."""
    return rows_in(store, f"SELECT * EXCEPT ({', '.join(KEYS[table])}, rolled_at) FROM {table} FINAL WHERE {ALIVE[table]} = 0")


def _same(ought: Any, was: Any) -> bool:
    if isinstance(ought, float):
        return isinstance(was, float | int) and math.isclose(ought, was, rel_tol=1e-9, abs_tol=1e-9)
    return bool(ought == was)


def _key(row: Row, names: Sequence[str]) -> Key:
    return tuple(row[name] for name in names)


def _grouped(rows: Iterable[Row], names: Sequence[str]) -> dict[Key, list[Row]]:
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[_key(row, names)].append(row)
    return groups


def _sum(rows: Iterable[Row], name: str) -> Any:
    return sum(row[name] for row in rows if row[name] is not None)


def _most(rows: Iterable[Row], name: str) -> int:
    return max((row[name] for row in rows if row[name] is not None), default=0)


def _with_values(rows: Iterable[Row], *names: str) -> list[Row]:
    return [row for row in rows if all(row[name] is not None for name in names)]


def _counts(values: Iterable[Any]) -> Any:
    """The number of each value; 0 instead of an empty map."""
    return dict(Counter(values)) or 0


def _buckets(values: Iterable[float | None]) -> Any:
    """Counts by bucket. There are 16 buckets per doubling, and one bucket for all values below 1."""
    return _counts(math.floor(math.log2(max(value, 1)) * 16) for value in values if value is not None)


def _positive(parts: Any) -> dict[str, int]:
    """The positive parts, and the sum of the negative ones as the time that a delayed stream caught up."""
    back = sum(min(ns, 0) for ns in dict(parts).values())
    return {name: ns for name, ns in dict(parts).items() if ns > 0} | ({"caught_up": back} if back else {})


def _added(maps: Iterable[Mapping[Any, int] | list[Any]]) -> Any:
    total: dict[Any, int] = {}
    for each in maps:
        for name, value in dict(each).items():
            total[name] = total.get(name, 0) + value
    return total or 0


def _stream_minutes(streams: list[Row], verdicts: list[Row], gap_us: int, first_us: int) -> Minutes:
    causes: dict[Key, dict[str, int]] = defaultdict(dict)
    for verdict in verdicts:
        if verdict["gap_us"] > gap_us:
            longest = causes[_stream_of(verdict)]
            longest[verdict["cause"]] = max(longest.get(verdict["cause"], 0), verdict["gap_us"])
    for row in streams:
        _judge(row, causes.get(_stream_of(row), {}), gap_us, first_us)
    return {key: _figures(rows) for key, rows in _grouped(streams, KEYS["stream_minutes"]).items()}


def _stream_of(row: Row) -> Key:
    return row["tenant"], row["start_time"], row["trace_id"], row["span_id"]


def _judge(row: Row, causes: dict[str, int], gap_us: int, first_us: int) -> None:
    """Add to the row whether the stream is good and which side is charged. ``causes``: the longest judged gap (µs) of each cause."""
    until_end = 0 if row["content_chunks"] else row["duration_ns"] // 1000
    first = next(us for us in (row["ttfo_us"], row["ttft_us"], until_end) if us is not None)
    row["is_over"] = row["outcome"] != "running"
    row["is_judged"] = row["is_over"] and row["content_chunks"] is not None
    row["is_late"], row["is_error"] = first > first_us, row["outcome"] in ERRORS
    row["over_gap"] = row["gap_max_us"] is not None and row["gap_max_us"] > gap_us
    row["is_bad"] = row["is_judged"] and (row["over_gap"] or row["is_error"] or row["is_late"])
    # An error, a long open gap, and a longest gap without a verdict are not charged to the end user.
    is_service = row["is_error"] or (row["gap_open_us"] or 0) > gap_us or (row["gap_max_us"] or 0) > max(causes.values(), default=0) + 1_000
    if is_service or causes.keys() - READERS - {"connection"}:
        row["side"] = "service"
    else:
        row["side"] = "connection" if "connection" in causes else "reader"
    after_first_us = row["duration_ns"] // 1000 - (row["ttft_us"] or 0)
    has_rate = row["is_over"] and (row["output_tokens"] or 0) > 1 and row["ttft_us"] is not None and after_first_us > 0
    row["log_rate"] = math.log(row["output_tokens"] / (after_first_us / 1e6)) if has_rate else None


def _figures(rows: list[Row]) -> Row:
    return {**_of_all(rows), **_of_judged(rows), **_of_ended(rows), **_of_tokens(rows)}


def _of_all(rows: list[Row]) -> Row:
    due = [(row["start_time"] + 1000 * row["next_due_us"] + OVERDUE_NS) // 10**6 for row in rows if not row["is_over"]]
    enveloped = [row for row in _with_values(rows, "wire_bytes", "content_bytes") if not row["chunks_dropped"]]
    return {
        "due_at": min(due, default=0),
        "objective": rows[0]["objective"],
        "streams": len(rows),
        "outcomes": _counts(row["outcome"] for row in rows),
        **{name: _sum(rows, name) for name in ("chunks", "content_chunks", "content_bytes", "otlp_bytes")},
        "enveloped_streams": len(enveloped),
        "enveloped_wire_bytes": _sum(enveloped, "wire_bytes"),
        "enveloped_content_bytes": _sum(enveloped, "content_bytes"),
    }


def _of_judged(rows: list[Row]) -> Row:
    bad = [row for row in rows if row["is_bad"]]
    over = [row for row in bad if row["over_gap"]]
    return {
        "judged": sum(row["is_judged"] for row in rows),
        "good": sum(row["is_judged"] and not row["is_bad"] for row in rows),
        "bad_gap": len(over),
        "bad_error": sum(not row["over_gap"] and row["is_error"] for row in bad),
        "bad_late": sum(not row["over_gap"] and not row["is_error"] for row in bad),
        "judged_clients": _counts(row["client"] for row in rows if row["is_judged"]),
        "bad_service_clients": _counts(r["client"] for r in bad if (r["over_gap"] or r["is_error"]) and r["side"] == "service"),
        "bad_connection_clients": _counts(row["client"] for row in over if row["side"] == "connection"),
        "bad_reader_clients": _counts(row["client"] for row in over if row["side"] == "reader"),
        "bad_late_clients": _counts(row["client"] for row in bad if not row["over_gap"] and not row["is_error"]),
    }


def _of_ended(rows: list[Row]) -> Row:
    over = [row for row in rows if row["is_over"]]
    timed = _with_values(over, "gap_max_us")
    heads, shares = _with_values(over, "head_burst"), _with_values(over, "multi_token_share")
    return {
        "timed_streams": len(timed),
        "gaps": _sum(timed, "gaps"),
        "gap_sum_us": _sum(timed, "gap_sum_us"),
        "gap_max_us": _most(timed, "gap_max_us"),
        "gap_buckets": _added(dict(zip(row["gap_bucket"], row["gap_bucket_count"], strict=True)) for row in timed),
        "gap_p99_buckets": _buckets(row["gap_p99_us"] for row in timed),
        "gap_max_buckets": _buckets(row["gap_max_us"] for row in timed),
        "jitter_permille_buckets": _buckets(row["jitter_ratio"] * 1000 for row in _with_values(over, "jitter_ratio")),
        **{f"{name}_buckets": _buckets(row[f"{name}_us"] for row in over) for name in ("ttfb", "ttft", "ttfo")},
        "stalled_streams": sum(row["stalls_250ms"] > 0 for row in _with_values(over, "stalls_250ms")),
        **{name: _sum(over, name) for name in ("stalls_250ms", "stalls_400ms", "excess_250ms_us")},
        "share_streams": len(shares),
        "multi_token_share_sum": float(_sum(shares, "multi_token_share")),
        "log_rate_streams": len(_with_values(rows, "log_rate")),
        "log_rate_sum": math.fsum(row["log_rate"] for row in _with_values(rows, "log_rate")),
        "log_rate_sq_sum": math.fsum(row["log_rate"] ** 2 for row in _with_values(rows, "log_rate")),
        "head_streams": len(heads),
        "head_bursts": sum(row["head_burst"] > 3 for row in heads),
    }


def _of_tokens(rows: list[Row]) -> Row:
    complete = [row for row in _with_values(rows, "output_tokens", "content_chunks") if not row["chunks_dropped"]]
    counted = [row for row in complete if row["content_chunks"] > 0]
    return {
        "token_streams": len(counted),
        "tokens": _sum(counted, "output_tokens"),
        "token_chunks": _sum(counted, "content_chunks"),
        "token_otlp_bytes": _sum(counted, "otlp_bytes"),
    }


def _with_dimensions(rows: Iterable[Row], streams: Iterable[Row]) -> list[Row]:
    """The rows that have a stream, with the stream's minute and dimensions."""
    dimensions = {_stream_of(stream): {name: stream[name] for name in (*DIMENSIONS, "minute", "objective")} for stream in streams}
    return [{**row, **dimensions[_stream_of(row)]} for row in rows if _stream_of(row) in dimensions]


def _stall_minutes(streams: list[Row], verdicts: list[Row]) -> Minutes:
    stalls = _with_dimensions((verdict for verdict in verdicts if verdict["cause"] != "base"), streams)
    return {
        key: {
            "objective": rows[0]["objective"],
            "stalls": len(rows),
            "stalled_us": _sum(rows, "gap_us"),
            "excess_us": _sum(rows, "excess_us"),
            "parts": _added(_positive(row["parts"]) for row in rows),
            "missing": _counts(name for row in rows for name in row["missing"]),
        }
        for key, rows in _grouped(stalls, KEYS["stall_minutes"]).items()
    }


def _but_for_minutes(streams: list[Row], verdicts: list[Row], replays: list[Row]) -> Minutes:
    newest: dict[Key, int] = {}
    for verdict in verdicts:
        if verdict["cause"] != "base":
            newest[_stream_of(verdict)] = max(newest.get(_stream_of(verdict), 0), verdict["judged_at"])
    of_newest = _with_dimensions((replay for replay in replays if newest.get(_stream_of(replay)) == replay["judged_at"]), streams)
    unchanged = {_stream_of(row): {**row, "cause": "", **_unchanged(row)} for row in of_newest}
    rows = [*of_newest, *unchanged.values()]
    return {
        key: {"streams": len(group), **{name: _sum(group, name) for name in _LEFT}}
        for key, group in _grouped(rows, KEYS["but_for_minutes"]).items()
    }


_LEFT = ("stalls", "stalls_min", "stalls_max", "stalled_us", "stalled_min_us", "stalled_max_us")


def _unchanged(replay: Row) -> Row:
    return {name: replay["stalls" if name.startswith("stalls") else "stalled_us"] for name in _LEFT}


def _engine_minutes(steps: list[Row]) -> Minutes:
    for row in steps:
        row["minute"] = row["recorded_at"] // MINUTE_NS * 60
    return {key: _of_steps(rows) for key, rows in _grouped(steps, KEYS["engine_minutes"]).items()}


def _of_steps(rows: list[Row]) -> Row:
    work, drafts = (
        _with_values(rows, "prefill_tokens", "decode_tokens", "decode_requests"),
        _with_values(rows, "draft_tokens", "accepted_tokens"),
    )
    pure = [row for row in rows if row["prefill_tokens"] == 0]
    return {
        "steps": len(rows),
        "interval_steps": len(_with_values(rows, "interval_us")),
        "interval_sum_us": _sum(rows, "interval_us"),
        "interval_buckets": _buckets(row["interval_us"] for row in rows),
        "decode_interval_buckets": _buckets(row["interval_us"] for row in pure),
        "running_steps": len(_with_values(rows, "running")),
        "running_sum": _sum(rows, "running"),
        "running_max": _most(rows, "running"),
        "waiting_sum": _sum(rows, "waiting"),
        "waiting_max": _most(rows, "waiting"),
        "work_steps": len(work),
        "prefill_steps": sum(row["prefill_tokens"] > 0 for row in work),
        **{name: _sum(work, name) for name in ("prefill_tokens", "decode_requests", "decode_tokens")},
        **{name: _sum(drafts, name) for name in ("draft_tokens", "accepted_tokens")},
        "preempting_steps": sum((row["preempted"] or 0) > 0 for row in rows),
        "preempted": _sum(rows, "preempted"),
        "kv_steps": len(_with_values(rows, "kv_used_ppm")),
        "kv_used_sum_ppm": _sum(rows, "kv_used_ppm"),
        "kv_used_max_ppm": _most(rows, "kv_used_ppm"),
    }
