"""Histograms of streams for Prometheus: the longest gap and the time to first token, each bucket with the trace of a stream in it.

The rows of an insert are counted together, column by column, so a stream costs no call. The trace ids are exemplars, which Prometheus asks
for in the format OpenMetrics; a graph in Grafana then links a bucket to the page of a stream. The module reads no store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

__all__ = ["GAP_MAX", "HISTOGRAMS", "TTFT", "Histogram", "StreamHistograms"]

Ints = NDArray[np.int64]
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Histogram:
    """One histogram: its name, its text, the column of ``stream_revs`` in µs, and the upper bounds of its buckets in seconds."""

    name: str
    text: str
    column: str
    bounds_s: tuple[float, ...]


_WHICH = (
    "of ended streams that were stored, in seconds, by service and vantage. Counts a response as legato_streams_total does. Services after "
    "the first 200 are counted as (other)"
)
GAP_MAX = Histogram(
    "legato_stream_gap_max_seconds",
    f"Longest gap {_WHICH}. With the trace of a stream in each bucket as its exemplar",
    "gap_max_us",
    (0.05, 0.1, 0.25, 0.4, 0.6, 1, 2, 4, 8, 15, 30, 60),
)
TTFT = Histogram(
    "legato_stream_ttft_seconds",
    f"Time to first token {_WHICH}. With exemplars",
    "ttft_us",
    (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 15, 30, 60),
)
HISTOGRAMS = (GAP_MAX, TTFT)


@dataclass(slots=True)
class _Series:
    """The counts of one service and vantage: a count and an exemplar a bucket, and the sum of the values."""

    counts: Ints
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    sum_s: float = 0.0


class StreamHistograms(Collector):
    """Both histograms. ``service_of`` bounds the number of services. One thread may call ``observe``, any thread may read."""

    def __init__(self, service_of: Callable[[str], str]) -> None:
        self._service_of = service_of
        self._lock = threading.Lock()
        self._series: dict[str, dict[tuple[str, str], _Series]] = {each.name: {} for each in HISTOGRAMS}

    def observe(self, rows: pa.Table) -> None:
        """Count rows of ``stream_revs`` that were just stored: those that end a stream, where they know the value."""
        # Only these columns: a filter copies what it keeps, and timelines are large.
        narrow = rows.select(("ended", "service_name", "vantage", "trace_id", *(each.column for each in HISTOGRAMS)))
        for histogram in HISTOGRAMS:
            known = narrow.filter(pc.and_(narrow["ended"], pc.is_valid(narrow[histogram.column])))
            if known.num_rows:
                self._observe(histogram, known)

    def _observe(self, histogram: Histogram, rows: pa.Table) -> None:
        values_s = rows[histogram.column].to_numpy() / _US
        # A value on a bound belongs to the bucket below, as `le` says.
        buckets = np.searchsorted(histogram.bounds_s, values_s, side="left")
        names, codes = _grouped(rows)
        width = len(histogram.bounds_s) + 1
        places = codes * width + buckets
        counts = np.bincount(places, minlength=len(names) * width).reshape(len(names), width)
        sums_s = np.bincount(codes, weights=values_s, minlength=len(names))
        # Of the streams in one bucket the last, because an assignment to the same place again keeps the last value.
        last = np.full(len(names) * width, -1)
        last[places] = np.arange(len(places))
        traces = rows["trace_id"]
        now_s = time.time()
        with self._lock:
            for code, (service, vantage) in enumerate(names):
                own = self._series[histogram.name].setdefault((self._service_of(service), vantage), _Series(np.zeros(width, np.int64)))
                own.counts += counts[code]
                own.sum_s += float(sums_s[code])
                for bucket, row in enumerate(last[code * width : (code + 1) * width].tolist()):
                    if row >= 0:
                        own.exemplars[bucket] = Exemplar({"trace_id": traces[row].as_py().hex()}, float(values_s[row]), now_s)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histograms."""
        for histogram in HISTOGRAMS:
            family = HistogramMetricFamily(histogram.name, histogram.text, labels=("service", "vantage"))
            bounds = [*map(floatToGoString, histogram.bounds_s), "+Inf"]
            with self._lock:
                for labels, own in sorted(self._series[histogram.name].items()):
                    family.add_metric(labels, _buckets(bounds, own), own.sum_s)
            yield family


def _buckets(bounds: Sequence[str], series: _Series) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    below = np.cumsum(series.counts).tolist()
    return [
        (bound, below[place], series.exemplars[place]) if place in series.exemplars else (bound, below[place])
        for place, bound in enumerate(bounds)
    ]


def _grouped(rows: pa.Table) -> tuple[list[tuple[str, str]], Ints]:
    """Return the different (service, vantage) of the rows, and the place of each row's among them."""
    services, vantages = (rows[name].combine_chunks().dictionary_encode() for name in ("service_name", "vantage"))
    pairs = services.indices.to_numpy().astype(np.int64) * len(vantages.dictionary) + vantages.indices.to_numpy()
    different, codes = np.unique(pairs, return_inverse=True)
    of_service, of_vantage = services.dictionary.to_pylist(), vantages.dictionary.to_pylist()
    return [(of_service[pair // len(of_vantage)], of_vantage[pair % len(of_vantage)]) for pair in different.tolist()], codes
