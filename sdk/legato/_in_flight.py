"""The number of streams in flight, as an OTLP gauge every five seconds while there are any.

The gauge `legato.stream.in_flight` has one series for each process, vantage and model. `legato.configure()` starts it, with a separate
metric reader: the application's meters are not touched.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from legato._worker import worker

__all__ = ["start"]

_EVERY_MS, _TIMEOUT_S = 5_000, 3


def start(endpoint: str, headers: Mapping[str, str] | None, resource: Mapping[str, Any]) -> None:
    """Start the gauge. ``resource``: the attributes of the process's resource, of which the service is sent."""
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from requests import Session

    seen: set[tuple[str, str]] = set()

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        counts = worker().in_flight()
        # A series that has ended is sent once more, with 0.
        pairs = seen | counts.keys()
        seen.clear()
        seen.update(counts.keys())
        for vantage, model in sorted(pairs):
            named = {"legato.stream.vantage": vantage, "gen_ai.request.model": model, "service.instance.id": _instance(os.getpid())}
            yield Observation(counts.get((vantage, model), 0), {key: value for key, value in named.items() if value})

    session = Session()
    # A forked child has a copy of this exporter. Both must not use one connection.
    session.headers["Connection"] = "close"
    exporter = OTLPMetricExporter(
        endpoint=f"{endpoint}/v1/metrics", headers=dict(headers or {}), timeout=_TIMEOUT_S, compression=Compression.Gzip, session=session
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=_EVERY_MS, export_timeout_millis=1000 * _TIMEOUT_S)
    service = {key: resource[key] for key in ("service.name", "service.version") if resource.get(key)}
    provider = MeterProvider([reader], resource=Resource(service))
    provider.get_meter("legato").create_observable_gauge("legato.stream.in_flight", [observe], unit="{stream}")


@cache
def _instance(pid: int) -> str:
    """Return an id of this process, also after a fork: processes of one service must not share a series."""
    return secrets.token_hex(4)
