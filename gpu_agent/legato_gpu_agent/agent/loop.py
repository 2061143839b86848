"""The agent's loop: reads the pipe and the collectors' buffer, and exports once per flush interval.

The loop polls its pipe every 20 to 250 ms instead of blocking on it, because waking a blocked reader would cost the engine many times the
cost of the copy. The loop reads and encodes, one thread sends, and each collector has a separate thread, so a source that hangs, fails or
is down does not stop the others. No content of a datagram can end the loop.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.collector_registry import CollectorRegistry
from legato_gpu_agent.agent.exporter import METRICS, Body, Exporter
from legato_gpu_agent.agent.otlp_metrics import metrics_request
from legato_gpu_agent.agent.otlp_spans import steps_request
from legato_gpu_agent.agent.pipe_reader import PipeReader
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.agent.settings import Settings
from legato_gpu_agent.agent.step_buffer import Flush, StepBuffer
from legato_gpu_agent.collectors.engine_processes import Pipe
from legato_gpu_agent.collectors.measurement import Timed
from legato_gpu_agent.plugin.protocol import BadDatagram, Datagram, decode_all

__all__ = ["Agent"]

_log = logging.getLogger("legato")
POLL_EVERY_S, POLL_IDLE_S, POLL_SILENT_S = 0.02, 0.05, 0.25
# After this long without a datagram polls are rarer: a plugin that starts again keeps in its backlog what does not fit into the pipe.
_IDLE_AFTER_S, _SILENT_AFTER_S = 1.0, 30.0
SHUTDOWN_S = 10.0
# Measurements in one request, of some hundred bytes each.
_MEASUREMENTS_MAX = 10_000


class Agent:
    """Runs until ``stop``, then reads the rest of the pipe and sends everything within 10 s."""

    def __init__(self, settings: Settings, metrics: SelfMetrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._reader = PipeReader(settings.pipe)
        self._step_buffer = StepBuffer()
        self._exporter = Exporter(settings.endpoint, metrics, settings.token)
        self._buffer = Buffer()
        self._collectors = CollectorRegistry(settings, self._buffer, metrics)
        self._stopping = False
        self._counted: dict[tuple[str, str], int] = {}
        self._received_s = float("-inf")

    def stop(self) -> None:
        """Stop soon. Safe in a signal handler, which runs in the loop's thread and would wait forever for a lock that the loop holds."""
        self._stopping = True

    def run(self) -> bool:
        """Run until stopped; return whether every record was sent, since the start."""
        self._exporter.start()
        self._collectors.start()
        flush_s = time.monotonic() + self._settings.flush_ms / 1000
        while not self._stopping:
            time.sleep(self._pause_s())
            self._read()
            if time.monotonic() >= flush_s or self._step_buffer.is_full:
                self._flush()
                flush_s = time.monotonic() + self._settings.flush_ms / 1000
        return self._close()

    def _pause_s(self) -> float:
        silent_s = time.monotonic() - self._received_s
        return POLL_EVERY_S if silent_s < _IDLE_AFTER_S else POLL_IDLE_S if silent_s < _SILENT_AFTER_S else POLL_SILENT_S

    def _close(self) -> bool:
        """Read the pipe for the last time (later datagrams stay in it for the next agent) and send everything."""
        self._collectors.stop()
        self._read()
        self._reader.close()
        self._flush(closing=True)
        return self._exporter.shutdown(SHUTDOWN_S) and not self._metrics.dropped_text()

    def _read(self) -> None:
        """Read all datagrams of the pipe."""
        pieces = self._reader.read()
        self._collectors.engine_registry.pipe = Pipe(self._settings.pipe.name, self._reader.file_id)
        if pieces:
            self._received_s = time.monotonic()
        for found in itertools.chain.from_iterable(map(decode_all, pieces)):
            if isinstance(found, BadDatagram):
                self._metrics.bad.labels(found.reason).inc()
            else:
                self._add(found, has_plugin=True)

    def _add(self, datagram: Datagram, has_plugin: bool = False) -> None:
        """Buffer a datagram until the next flush, or count why it was rejected."""
        try:
            self._metrics.lost.inc(self._step_buffer.add(datagram, time.time_ns()))
        except BadDatagram as error:
            self._metrics.bad.labels(error.reason).inc()
            return
        self._collectors.engine_registry.register(datagram.engine.id, has_plugin=has_plugin)
        for kind, count in (("step", datagram.step is not None), ("finished", len(datagram.finished)), ("scheduler", len(datagram.events))):
            if count:
                self._metrics.received.labels(kind).inc(count)

    def _flush(self, closing: bool = False) -> None:
        self._collectors.report_hung(time.time_ns())
        measurements, datagrams = self._buffer.drain()
        for datagram in datagrams:
            self._add(datagram)
        self._flush_steps(closing)
        for first in range(0, len(measurements), _MEASUREMENTS_MAX):
            self._export_measurements(measurements[first : first + _MEASUREMENTS_MAX])
        self._count_dropped("sample", "pending_full", self._buffer.overflowed)

    def _export_measurements(self, measurements: Sequence[Timed]) -> None:
        try:
            content = metrics_request(self._settings.host, measurements).SerializeToString(deterministic=True)
        except Exception as error:
            _log.exception("%d measurements could not be encoded", len(measurements))
            self._metrics.dropped.labels("sample", type(error).__name__).inc(len(measurements))
            return
        self._exporter.export(Body(content, {"sample": len(measurements)}, METRICS))

    def _count_dropped(self, kind: str, reason: str, total: int) -> None:
        """Add the increase of a total of dropped records to the metric."""
        self._metrics.dropped.labels(kind, reason).inc(total - self._counted.get((kind, reason), 0))
        self._counted[kind, reason] = total

    def _flush_steps(self, closing: bool) -> None:
        for flush in self._step_buffer.flushes(time.time_ns(), closing):
            records = _records(flush)
            try:
                content = steps_request(flush.engine, flush.steps, flush.finished, flush.events).SerializeToString(deterministic=True)
            except Exception as error:
                _log.exception("a flush of %d steps could not be encoded", len(flush.steps))
                for kind, count in records.items():
                    self._metrics.dropped.labels(kind, type(error).__name__).inc(count)
                continue
            self._exporter.export(Body(content, records))
        self._metrics.engines.set(self._step_buffer.engines)
        for reason, counts in (("pending_full", self._step_buffer.overflowed), ("no_step", self._step_buffer.forgotten)):
            for kind, count in counts.items():
                self._count_dropped(kind, reason, count)


def _records(flush: Flush) -> dict[str, int]:
    """Return the number of records by kind; a repeated step was counted before."""
    return {"step": 0 if flush.again else len(flush.steps), "finished": len(flush.finished), "scheduler": len(flush.events)}
