"""The agent: reads what the plugins tell and what its collectors find, and sends it on once a second.

One idea: it looks into its pipe every few milliseconds instead of waiting on it, because to wake a sleeping reader would cost the engine
many times what the copy costs. One loop reads and encodes, one thread sends, each collector has a thread of its own: nothing that hangs,
fails or is down stops the rest, and nothing that a datagram holds can end it.
"""

from __future__ import annotations

import itertools
import logging
import time

from legato_gpu_agent.agent.exporter import METRICS, Body, Post
from legato_gpu_agent.agent.otlp_metrics import Sample, metrics_of
from legato_gpu_agent.agent.otlp_spans import request_of
from legato_gpu_agent.agent.pipe_reader import Inlet
from legato_gpu_agent.agent.self_metrics import Metrics
from legato_gpu_agent.agent.settings import Settings
from legato_gpu_agent.agent.step_buffer import Flush, Pending
from legato_gpu_agent.collectors.registry import Roster
from legato_gpu_agent.collectors.runner import Basket
from legato_gpu_agent.plugin.protocol import BadDatagram, Datagram, understood

__all__ = ["Agent"]

_log = logging.getLogger("legato")
LOOK_EVERY_S, LOOK_IDLE_S, LOOK_SILENT_S = 0.02, 0.05, 0.25
# After this long without a datagram the looks are rarer: a plugin that begins again keeps what does not fit meanwhile.
_IDLE_AFTER_S, _SILENT_AFTER_S = 1.0, 30.0
DRAIN_S = 10.0
# Samples in one request: some hundred bytes each.
_SAMPLES_MAX = 10_000


class Agent:
    """Runs until ``stop``: then it takes what the pipe holds and sends all it has, within ``DRAIN_S``."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._inlet = Inlet(settings.pipe)
        self._pending = Pending()
        self._post = Post(settings.endpoint, metrics, settings.token)
        self._basket = Basket()
        self._roster = Roster(settings, self._basket, metrics)
        self._stopping = False
        self._counted: dict[tuple[str, str], int] = {}
        self._heard_at = float("-inf")

    def stop(self) -> None:
        """End soon. Safe in a signal handler: that runs in the loop's own thread, and would wait for ever for a lock that the loop has."""
        self._stopping = True

    def run(self) -> bool:
        """Until stopped; whether all was sent."""
        self._post.start()
        self._roster.start()
        flush_at = time.monotonic() + self._settings.flush_ms / 1000
        while not self._stopping:
            time.sleep(self._pause_s())
            self._read()
            if time.monotonic() >= flush_at or self._pending.is_full:
                self._flush()
                flush_at = time.monotonic() + self._settings.flush_ms / 1000
        return self._close()

    def _pause_s(self) -> float:
        silent_s = time.monotonic() - self._heard_at
        return LOOK_EVERY_S if silent_s < _IDLE_AFTER_S else LOOK_IDLE_S if silent_s < _SILENT_AFTER_S else LOOK_SILENT_S

    def _close(self) -> bool:
        """What plugins tell from now on stays in the pipe for the next agent."""
        self._roster.stop()
        self._read()
        self._inlet.close()
        forgotten = sum(self._pending.forgotten.values())
        self._flush(closing=True)
        all_had_steps = sum(self._pending.forgotten.values()) == forgotten
        return self._post.close(DRAIN_S) and all_had_steps

    def _read(self) -> None:
        """All that the pipe holds."""
        pieces = self._inlet.read()
        if pieces:
            self._heard_at = time.monotonic()
        for found in itertools.chain.from_iterable(map(understood, pieces)):
            if isinstance(found, BadDatagram):
                self._metrics.bad.labels(found.reason).inc()
            else:
                self._take(found)

    def _take(self, datagram: Datagram) -> None:
        """Keep it, or count why not."""
        try:
            self._keep(datagram)
        except BadDatagram as error:
            self._metrics.bad.labels(error.reason).inc()

    def _keep(self, datagram: Datagram) -> None:
        """Until the next flush. Raises ``BadDatagram``."""
        self._metrics.lost.inc(self._pending.take(datagram, time.time_ns()))
        self._roster.neighbours.tell(datagram.engine.id)
        for kind, count in (("step", datagram.step is not None), ("finished", len(datagram.finished)), ("scheduler", len(datagram.events))):
            if count:
                self._metrics.received.labels(kind).inc(count)

    def _flush(self, closing: bool = False) -> None:
        self._roster.heed(time.time_ns())
        samples, told = self._basket.empty()
        for datagram in told:
            self._take(datagram)
        self._flush_steps(closing)
        for first in range(0, len(samples), _SAMPLES_MAX):
            self._send_samples(samples[first : first + _SAMPLES_MAX])
        self._count("sample", "pending_full", self._basket.overflowed)

    def _send_samples(self, samples: list[Sample]) -> None:
        try:
            content = metrics_of(self._settings.host, samples).SerializeToString(deterministic=True)
        except Exception as error:
            _log.exception("%d samples could not be encoded", len(samples))
            self._metrics.dropped.labels("sample", type(error).__name__).inc(len(samples))
            return
        self._post.put(Body(content, {"sample": len(samples)}, METRICS))

    def _count(self, kind: str, reason: str, dropped: int) -> None:
        """What was dropped so far, once."""
        self._metrics.dropped.labels(kind, reason).inc(dropped - self._counted.get((kind, reason), 0))
        self._counted[kind, reason] = dropped

    def _flush_steps(self, closing: bool) -> None:
        for flush in self._pending.flushes(time.time_ns(), closing):
            records = _records(flush)
            try:
                content = request_of(flush.engine, flush.steps, flush.finished, flush.events).SerializeToString(deterministic=True)
            except Exception as error:
                _log.exception("a flush of %d steps could not be encoded", len(flush.steps))
                for kind, count in records.items():
                    self._metrics.dropped.labels(kind, type(error).__name__).inc(count)
                continue
            self._post.put(Body(content, records))
        self._metrics.engines.set(self._pending.engines)
        for reason, counts in (("pending_full", self._pending.overflowed), ("no_step", self._pending.forgotten)):
            for kind, count in counts.items():
                self._count(kind, reason, count)


def _records(flush: Flush) -> dict[str, int]:
    """How many of each kind it holds; a step that goes again was counted before."""
    return {"step": 0 if flush.again else len(flush.steps), "finished": len(flush.finished), "scheduler": len(flush.events)}
