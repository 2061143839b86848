"""Figures of one run of `bench/peers.py`: latencies, bytes, and the rows that the exported spans give, compared with what was seen.

The spans of every contestant become rows by the code with which `legato serve` converts them: a figure that a span does not hold is
unknown in the row. Nothing here starts a process.
"""

from __future__ import annotations

import collections
import gzip
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.common.machine import median, quantile
from captures.sink import Received
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.bodies import convert

__all__ = ["Accuracy", "Kept", "Latency", "accuracy", "kept", "latency", "outcomes", "rows_of", "wire_bytes"]

_FIRST_NS = 60_000_000_000


@dataclass(frozen=True)
class Latency:
    """From the send of a chunk to the application's loop, in µs, and processor time of the application per chunk, in µs."""

    p50_us: float
    p99_us: float
    p999_us: float
    cpu_us: float


@dataclass(frozen=True)
class Accuracy:
    """Medians of the differences to what the application saw, in ms; None where no stream's row has the figure."""

    rows: int
    ttft_error_ms: float | None
    gap_error_ms: float | None


@dataclass(frozen=True)
class Kept:
    """Streams of a process that was killed: how many have a row, and what share of the chunks of the running ones is in the rows."""

    ended: int
    running: int
    chunk_share: float


def latency(output: dict[str, Any]) -> Latency:
    """Summarise the output of a run."""
    values = output["latencies_us"]
    p50, p99, p999 = (quantile(values, share) for share in (0.5, 0.99, 0.999))
    return Latency(p50, p99, p999, output["cpu_s"] / len(values) * 1e6)


def wire_bytes(received: Iterable[Received]) -> int:
    """Return the bytes of all requests' bodies, as they were sent."""
    return sum(len(each.body) for each in received)


def rows_of(received: Iterable[Received]) -> list[dict[str, Any]]:
    """Return the newest row of each stream in the requests' spans, without those of other paths."""

    def fault(error: Exception) -> None:
        raise error

    newest: dict[tuple[bytes, bytes], dict[str, Any]] = {}
    for each in received:
        if each.path.endswith("/traces"):
            body = gzip.decompress(each.body) if each.content_encoding == "gzip" else each.body
            batch = Batch.joined(convert(body, tenant="", now_ns=time.time_ns() + _FIRST_NS, limits=Limits(), on_fault=fault))
            for row in batch.revs.to_pylist():
                key = row["trace_id"], row["span_id"]
                if key not in newest or row["rev"] > newest[key]["rev"]:
                    newest[key] = row
    return list(newest.values())


def accuracy(rows: Sequence[dict[str, Any]], streams: Sequence[dict[str, Any]]) -> Accuracy:
    """Compare rows with what the application saw; rows of other streams are left out."""
    seen = {each["response_id"]: each for each in streams}
    pairs = [(row, seen[row["response_id"]]) for row in rows if row["response_id"] in seen]
    if not pairs and len(rows) == len(streams):
        # Rows without a response's id: in the order of their starts.
        pairs = list(zip(sorted(rows, key=lambda row: row["start_time"]), sorted(streams, key=lambda each: each["start_ns"]), strict=True))

    def error_ms(name: str) -> float | None:
        found = [abs(row[name] - each[name]) / 1e3 for row, each in pairs if row[name] is not None and each[name] is not None]
        return statistics.median(found) if found else None

    return Accuracy(len(pairs), error_ms("ttft_us"), error_ms("gap_max_us"))


def outcomes(rows: Sequence[dict[str, Any]], streams: int) -> str:
    """Describe the rows of streams that the application left: the number of each outcome, and of streams without a row."""
    counts = collections.Counter(row["outcome"] for row in rows)
    if missing := streams - len(rows):
        counts["no row"] = missing
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def kept(rows: Sequence[dict[str, Any]], streams: int, chunks_sent: int) -> Kept:
    """Return what arrived of a process that was killed: the models of its streams are those of `application.models`."""
    is_long = [row["model"].startswith("bench:1500:") for row in rows]
    running = [row for row, long in zip(rows, is_long, strict=True) if long]
    found = sum(row["chunks"] or 0 for row in running)
    return Kept(len(rows) - len(running), len(running), found / (chunks_sent * streams))


def middle(values: Sequence[Latency]) -> Latency:
    """Return the medians of several runs."""
    columns = zip(*((each.p50_us, each.p99_us, each.p999_us, each.cpu_us) for each in values), strict=True)
    return Latency(*(median(list(column)) for column in columns))
