"""A recording's scrapes, host counters and server sockets as OTLP metrics, as a node's agent would have sent them.

Each recorded line is one scrape at the line's time. Scraped texts pass through the agent's own reader; host counters have the names of the
semantic conventions where these define one, otherwise `legato.*`. Only `metrics*`, `host*` and the server's side of `tcpinfo` are read.
"""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

from legato_gpu_agent.agent.otlp_metrics import metrics_request
from legato_gpu_agent.collectors.exposition import ExpositionReader
from legato_gpu_agent.collectors.measurement import Measurement, Timed
from legato_gpu_agent.engines.registry import ENGINES

__all__ = ["HOST", "engine_samples", "lines", "socket_samples"]

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
    for path in sorted(folder.glob("metrics*.jsonl.gz")):
        yield from _pages(folder, path.name.removeprefix("metrics").removesuffix(".jsonl.gz"))
    for path in sorted(folder.glob("host*.jsonl.gz")):
        suffix = path.name.removeprefix("host").removesuffix(".jsonl.gz")
        bodies = _Bodies(f"engine{suffix}")
        for record in lines(folder, f"host{suffix}"):
            _host(bodies, record)
            yield from bodies.full()
        yield from bodies.full(1)


def _pages(folder: pathlib.Path, suffix: str) -> Iterator[tuple[bytes, int]]:
    """Each recorded page as the agent reads it: what did not change since the last is as true as what did."""
    page, agent, samples = dict[str, float](), ExpositionReader(ENGINES["vllm"], f"engine{suffix}"), list[Timed]()
    for record in lines(folder, f"metrics{suffix}"):
        page.update(record.get("m", {}))
        text = "".join(f"{key.replace('{,', '{').replace(',}', '}')} {value}\n" for key, value in page.items())
        labels = (("legato.boot.id", HOST), ("legato.engine.id", f"engine{suffix}"), ("legato.engine.kind", "vllm"))
        found = [Measurement("legato.engine.up", "1", 1.0, labels), *agent.read(text.encode(), record["t0_ns"])]
        samples += [(record["t0_ns"], each) for each in found]
        if len(samples) >= BODY_POINTS:
            yield metrics_request(HOST, samples).SerializeToString(), len(samples)
            samples = []
    if samples:
        yield metrics_request(HOST, samples).SerializeToString(), len(samples)


def _host(bodies: _Bodies, record: dict[str, Any]) -> None:
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
