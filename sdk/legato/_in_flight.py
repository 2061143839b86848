"""The number of streams in flight, as an OTLP gauge every five seconds while there are any.

The gauge `legato.stream.in_flight` has one series for each process, vantage and model. It has a separate meter provider: the application's
meters are not touched. OpenTelemetry's periodic reader is not used, because it starts a thread in each forked child, which under gevent
runs the application a second time, and because parent and child would share a connection. Here a process that records no stream has no
thread, and each process has its own exporter.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

from legato._clock import now_ns
from legato._errors import guard
from legato._exits import after_fork
from legato._otlp_session import ExportSession
from legato._pace import Starter, check, in_background, waits_since
from legato._worker import worker

__all__ = ["InFlight"]

_EVERY_S, _TIMEOUT_S = 5.0, 3


class _MeterProvider(MeterProvider):
    """A provider that does nothing at a fork. OpenTelemetry's runs resource detectors in threads in each child, and waits for them."""

    def _handle_fork(self) -> None:
        """Do nothing: each process makes a new provider."""


class InFlight:
    """Sends the gauge to ``url`` (of the metrics). ``resource``: attributes of the process, of which the service is sent."""

    def __init__(self, url: str, headers: Mapping[str, str] | None, resource: Mapping[str, Any]) -> None:
        self._url, self._headers = url, dict(headers or {})
        self._service = {key: resource[key] for key in ("service.name", "service.version") if resource.get(key)}
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        self._starter = Starter()
        self._thread: threading.Thread | None = None
        self._report: Callable[[], object] | None = None
        self._seen: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Start the thread, if it does not run. Called with each stream."""
        if self._thread is None:
            self._starter.start(lambda: self._thread is not None, self._start)

    def _start(self) -> None:
        self._thread = in_background("legato-in-flight", self._run)

    def close(self) -> None:
        """Send the end of the series that were sent."""
        if self._report is not None and self._seen:
            self._report()

    def _run(self) -> None:
        with guard("streams in flight"):
            self._report = self._reporter()
        # Not `time.sleep`, which tests of applications replace.
        never = threading.Event()
        while self._report is not None:
            never.wait(_EVERY_S)
            check()
            waits_since(now_ns())
            with guard("streams in flight"):
                self._report()

    def _reporter(self) -> Callable[[], object]:
        """Return a function that reads the gauge and sends it, if it has a value."""
        # Processes of one service must not share a series.
        instance = secrets.token_hex(4)

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for vantage, model, count in self._counts():
                named = {"legato.stream.vantage": vantage, "gen_ai.request.model": model, "service.instance.id": instance}
                yield Observation(count, {key: value for key, value in named.items() if value})

        def report() -> None:
            data = reader.get_metrics_data()
            if data is not None and data.resource_metrics:
                exporter.export(data)

        session = ExportSession("metrics", self._url, self._headers)
        exporter = OTLPMetricExporter(
            endpoint=self._url, headers=self._headers, timeout=_TIMEOUT_S, compression=Compression.Gzip, session=session
        )
        reader = InMemoryMetricReader()
        provider = _MeterProvider([reader], resource=Resource(self._service), shutdown_on_exit=False)
        provider.get_meter("legato").create_observable_gauge("legato.stream.in_flight", [observe], unit="{stream}")
        return report

    def _counts(self) -> list[tuple[str, str, int]]:
        """Return vantage, model and number of running streams. A series that has ended is returned once more, with 0."""
        counts = worker().in_flight()
        pairs = self._seen | counts.keys()
        self._seen = set(counts)
        return [(vantage, model, counts.get((vantage, model), 0)) for vantage, model in sorted(pairs)]
