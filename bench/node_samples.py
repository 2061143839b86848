"""A recording's scrapes, host counters and server sockets as OTLP metrics: what a node's agent would have sent.

One idea: each recorded line is one scrape, and every value of it one data point at the line's time; none is left out. Scrapes keep their
Prometheus names, with labels as attributes and buckets put together to histograms; host counters have the semantic conventions' names where
these have one, `legato.*` where not. It reads `metrics*`, `host*` and the server's side of `tcpinfo`, nothing else.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

__all__ = ["engine_samples", "lines", "socket_samples"]

BODY_POINTS = 4_000
HOST = "recording"
JIFFIES_PER_S = 100
MODES = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")
# What /proc/PID/schedstat says of a process: metric, unit, per unit.
SCHEDSTAT = (("process.cpu.time", "s", 1e9), ("legato.process.run_queue.wait_time", "s", 1e9), ("legato.process.timeslices", "1", 1))
# What sock_diag says of a connection: the recording's name, metric, unit, per unit, and whether it only grows.
SOCKET = (
    ("total_retrans", "legato.socket.retransmits", "{segment}", 1, True),
    ("rwnd_limited_us", "legato.socket.receive_window_limited_time", "s", 1e6, True),
    ("sndbuf_limited_us", "legato.socket.send_buffer_limited_time", "s", 1e6, True),
    ("wqueue", "legato.socket.write_queue", "By", 1, False),
    ("notsent", "legato.socket.not_sent", "By", 1, False),
    ("snd_wnd", "legato.socket.send_window", "By", 1, False),
    ("unacked", "legato.socket.unacknowledged", "{segment}", 1, False),
    ("lost", "legato.socket.lost", "{segment}", 1, False),
    ("cwnd", "legato.socket.congestion_window", "{segment}", 1, False),
    ("rto_us", "legato.socket.retransmission_timeout", "s", 1e6, False),
    ("rtt_us", "legato.socket.round_trip_time", "s", 1e6, False),
    ("retransmits", "legato.socket.retransmits_unanswered", "1", 1, False),
    ("backoff", "legato.socket.backoff", "1", 1, False),
)
_KEY = re.compile(r"([^{]+)(?:\{,?(.*?),?\})?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PART = re.compile(r"(.*)_(bucket|count|sum)")


def lines(folder: pathlib.Path, name: str) -> Iterator[dict[str, Any]]:
    """The records of one file; none where the folder lacks it."""
    path = folder / f"{name}.jsonl.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


class _Bodies:
    """Collects points and hands out requests of some thousands."""

    def __init__(self, engine_id: str) -> None:
        self._engine_id = engine_id
        self._start()

    def _start(self) -> None:
        self.points = 0
        self._request = ExportMetricsServiceRequest()
        resource = self._request.resource_metrics.add()
        resource.resource.attributes.extend(_keyed({"legato.engine.id": self._engine_id, "host.name": HOST}))
        self._metrics = resource.scope_metrics.add().metrics

    def number(self, name: str, value: float, time_ns: int, attributes: Mapping[str, Any], unit: str = "", grows: bool = False) -> None:
        """One gauge or, where it only grows, one cumulative sum."""
        metric: Metric = self._metrics.add(name=name, unit=unit)
        if grows:
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = True
        data = metric.sum if grows else metric.gauge
        data.data_points.add(time_unix_nano=time_ns, as_double=value, attributes=_keyed(attributes))
        self.points += 1

    def histogram(self, name: str, parts: Mapping[str, float], time_ns: int, attributes: Mapping[str, Any]) -> None:
        """One histogram from a page's cumulative buckets (by bound), its ``count`` and its ``sum``."""
        bounds = sorted(float(bound) for bound in parts if bound not in ("count", "sum"))
        totals = [int(parts[bound]) for bound in sorted((each for each in parts if each not in ("count", "sum")), key=float)]
        counts = [high - low for low, high in zip([0, *totals], totals, strict=False)]
        metric: Metric = self._metrics.add(name=name)
        metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        metric.histogram.data_points.add(
            time_unix_nano=time_ns,
            count=totals[-1],
            sum=parts["sum"],
            explicit_bounds=bounds[:-1],
            bucket_counts=counts,
            attributes=_keyed(attributes),
        )
        self.points += 1

    def full(self, at_least: int = BODY_POINTS) -> Iterator[tuple[bytes, int]]:
        """The request so far with its number of points, when it has so many."""
        if self.points >= at_least:
            yield self._request.SerializeToString(), self.points
            self._start()


def _keyed(attributes: Mapping[str, Any]) -> Iterator[KeyValue]:
    for key, value in attributes.items():
        yield KeyValue(key=key, value=AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value))


def engine_samples(folder: pathlib.Path) -> Iterator[tuple[bytes, int]]:
    """Bodies of what was sampled beside each engine: its pages, and its host."""
    for add, name in ((_scrape, "metrics"), (_host, "host")):
        for path in sorted(folder.glob(f"{name}*.jsonl.gz")):
            suffix = path.name.removeprefix(name).removesuffix(".jsonl.gz")
            bodies, page = _Bodies(f"engine{suffix}"), dict[str, float]()
            for record in lines(folder, f"{name}{suffix}"):
                page.update(record.get("m", {}))
                add(bodies, record, page)
                yield from bodies.full()
            yield from bodies.full(1)


def _scrape(bodies: _Bodies, record: dict[str, Any], page: Mapping[str, float]) -> None:
    """A whole page: what did not change since the last is as true as what did."""
    histograms: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, float]] = {}
    for key, value in page.items():
        name, text = _KEY.fullmatch(key).groups()  # type: ignore[union-attr]
        labels = dict(_LABEL.findall(text or ""))
        bound, part = labels.pop("le", None), _PART.fullmatch(name)
        if part and (bound is not None or f"{part.group(1)}_sum{{}}" in page):
            histograms.setdefault((part.group(1), tuple(labels.items())), {})[bound or part.group(2)] = value
        else:
            bodies.number(name, value, record["t0_ns"], labels, grows=name.endswith("_total"))
    for (name, own), parts in histograms.items():
        bodies.histogram(name, parts, record["t0_ns"], dict(own))


def _host(bodies: _Bodies, record: dict[str, Any], _: Mapping[str, float]) -> None:
    """CPU time by processor and mode, and what each process of the engine got and waited for."""
    for number, jiffies in enumerate(record["cpu"]):
        for mode, value in zip(MODES, jiffies, strict=True):
            attributes = {"cpu.logical_number": number, "cpu.mode": mode}
            bodies.number("system.cpu.time", value / JIFFIES_PER_S, record["t_ns"], attributes, "s", True)
    for role, values in record.items():
        if role not in ("t_ns", "cpu"):
            for (name, unit, per), value in zip(SCHEDSTAT, values, strict=True):
                bodies.number(name, value / per, record["t_ns"], {"legato.process.role": role}, unit, True)


def socket_samples(folder: pathlib.Path) -> Iterator[tuple[bytes, int]]:
    """Bodies of what the server's sockets said; of a connection the recording knows the client's port."""
    bodies = _Bodies("engine")
    for record in lines(folder, "tcpinfo"):
        if record["side"] == "server":
            for key, name, unit, per, grows in SOCKET:
                bodies.number(name, record[key] / per, record["t_ns"], {"client.port": record["sport"]}, unit, grows)
            yield from bodies.full()
    yield from bodies.full(1)
