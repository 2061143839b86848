"""Legato beside an application's OpenTelemetry set-up, in every order, and the counters of what became of each stream."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

import legato
from helpers.servers.receiver import ReceivedStream, receiver

APPLICATION = pathlib.Path(__file__).parent / "provider_application.py"
FATES = ("exported", "failed", "unsampled", "lost", "handed_over", "waiting", "ignored")


def run(way: str, reply: bytes = b"", **environ: str) -> tuple[dict[str, Any], list[ReceivedStream], str]:
    """Run the application against an endpoint that replies so. Return what it printed, the streams that arrived, and the log."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST" and not name.startswith("OTEL_")}
    with receiver() as endpoint:
        endpoint.reply = reply
        command = [sys.executable, str(APPLICATION), way, endpoint.url]
        done = subprocess.run(command, env={**clean, **environ}, capture_output=True, text=True, timeout=60, check=False)
        streams = endpoint.streams
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    stats = printed["stats"]
    assert stats["started"] == stats["live"] + stats["queued"] + stats["ended"], stats
    assert stats["ended"] == sum(stats[fate] for fate in FATES), stats
    assert stats["faults"] == 0 and stats["exported"] == len(streams), (stats, done.stderr)
    return printed, streams, done.stderr


def fates(printed: dict[str, Any]) -> dict[str, int]:
    """The fates that occurred."""
    return {fate: printed["stats"][fate] for fate in FATES if printed["stats"][fate]}


@pytest.mark.parametrize(
    ("way", "service", "is_sampled"), [("first", "named", False), ("last", "of the variable", True), ("proxy", "of the variable", True)]
)
def test_every_order_beside_an_application(way: str, service: str, is_sampled: bool) -> None:
    """All streams arrive, and none twice; the application keeps its provider and its spans alone; trace ids join, and the server sees the
    sampling decision of the application."""
    printed, streams, log = run(way, OTEL_SERVICE_NAME="of the variable", OTEL_TRACES_SAMPLER="always_off")
    assert fates(printed) == {"exported": 5} and printed["flushed"] == [True, True]
    assert {stream.service for stream in streams} == {service}
    trace_id, span_id = printed["parent"]
    inside = [stream for stream in streams if stream.model == "inside"]
    assert len(inside) == 4 and {(stream.trace_id, stream.parent_id) for stream in inside} == {(trace_id, span_id)}
    (outside,) = (stream for stream in streams if stream.model == "outside")
    assert outside.parent_id == "" and outside.trace_id != trace_id
    sent = [f"00-{stream.trace_id}-{stream.span_id}" for stream in streams]
    assert sorted(header.rpartition("-")[0] for header in printed["headers"]) == sorted(sent)
    assert [bool(int(header[-2:], 16) & 1) for header in printed["headers"]] == [is_sampled] * 4 + [True]
    assert printed["is_global"] and printed["kept"] == (["work"] if is_sampled else [])
    assert "verrid" not in log and "legato" not in log, log


def test_seeded_processes_have_different_ids() -> None:
    """An application that seeds Python's generator in each process gets different trace ids in each."""
    ids = {stream.trace_id for _ in range(2) for stream in run("proxy")[1] if stream.model == "outside"}
    assert len(ids) == 2


def test_without_configure_the_applications_provider_is_used() -> None:
    """Without one, streams are lost and flush returns False once; its sampler counts; then `configure()` records all. Each is said once."""
    printed, streams, log = run("growing")
    counted = fates(printed)
    assert counted.pop("lost") == 3 and counted.pop("exported") == 5 == len(streams)
    assert counted.keys() == {"handed_over", "unsampled"} and sum(counted.values()) == 40, counted
    assert Counter(printed["kept"]) == {"chat application": counted["handed_over"], **({"work": 1} if "work" in printed["kept"] else {})}
    assert {stream.service for stream in streams} == {"application"}
    assert printed["flushed_before"] == [False, True, True] and printed["flushed"] == [True, True]
    assert [log.count(text) for text in ("sent nowhere", "does not sample", "called again")] == [1, 1, 1], log


class Counted(TracerProvider):
    """Counts the tracers that it made."""

    tracers = 0

    def get_tracer(self, *given: Any, **more: Any) -> trace.Tracer:
        """Return a new tracer."""
        self.tracers += 1
        return super().get_tracer(*given, **more)


def test_a_provider_makes_one_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of the application's provider share it; those of another provider that is set later have another."""
    providers = [Counted(), Counted()]
    for provider in [*providers, providers[0]]:
        monkeypatch.setattr(trace, "get_tracer_provider", lambda provider=provider: provider)
        for _ in range(3):
            with legato.stream(model="m", provider="p") as stream:
                assert isinstance(stream.span, ReadableSpan) and stream.span.resource is provider.resource
    assert [provider.tracers for provider in providers] == [2, 1]


@pytest.mark.parametrize(("variable", "lines"), [("OTEL_SDK_DISABLED", 1), ("LEGATO_DISABLED", 0)])
def test_a_disabled_sdk_records_nothing(variable: str, lines: int) -> None:
    """It is counted; OpenTelemetry's variable is named once in the log, because it is not Legato's."""
    printed, streams, log = run("disabled", b"", **{variable: "true"})
    assert fates(printed) == {"unsampled": 5} and not streams and printed["kept"] == []
    assert log.count("OTEL_SDK_DISABLED=true") == lines and printed["flushed"] == [True, True]


REJECTED = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=2, error_message="2 of 5: clock"))


@pytest.mark.parametrize(("reply", "rejected"), [(REJECTED.SerializeToString(), 2), (b"<html>\xff", 0)])
def test_rejected_spans_are_counted(reply: bytes, rejected: int) -> None:
    """The endpoint accepts an export and not all of its spans: flush is False once, the message is logged. Other replies are ignored."""
    printed, _, log = run("last", reply)
    assert fates(printed) == {"exported": 5} and printed["stats"]["rejected"] == rejected
    assert printed["flushed"] == [not rejected, True] and log.count("2 of 5: clock") == bool(rejected)


def test_a_failed_export_is_counted() -> None:
    """Nothing listens: the first flush is False, the streams are `failed`, one line says so, and the next flush has nothing to report."""
    printed, _, log = run("unreachable", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert fates(printed) == {"failed": 5} and printed["flushed"] == [False, True]
    assert log.count("an export failed") == 1


def test_a_flush_keeps_its_time_limit() -> None:
    """The exporter still tries: flush returns False, the streams are `waiting`, and they are `failed` in the end."""
    printed, _, _ = run("waiting", OTEL_EXPORTER_OTLP_TIMEOUT="3")
    assert printed["flushed_before"] == [False] and printed["waiting_before"] == 5
    assert fates(printed) == {"failed": 5} and printed["flushed"] == [False, True]
