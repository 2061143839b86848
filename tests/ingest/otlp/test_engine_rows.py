"""Rows of engine steps and finished requests, from the bytes that the agent sends; bad flushes do not affect others."""

from __future__ import annotations

import time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.spans import any_value, native_span
from legato_gpu_agent.agent.otlp_spans import Engine, FinishedRequest, Step, steps_request
from legato_ingest.columns import ENGINE_REQUESTS, ENGINE_STEPS
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import DAY_NS, Batch, Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer

NOW_NS = time.time_ns() // 1_000_000 * 1_000_000
ENGINE = Engine("host:8000", NOW_NS - 10**12)


def steps(count: int, first: int = 100) -> list[Step]:
    """Return steps of 20 ms that began one second ago, with a prefill in every third."""
    return [
        Step(
            number=first + i,
            recorded_ns=NOW_NS - 10**9 + 20_000_000 * i,
            interval_us=20_000 + i if i else None,
            running=4,
            waiting=0,
            prefill_tokens=512 if i % 3 == 0 else 0,
            decode_requests=4,
            decode_tokens=4,
        )
        for i in range(count)
    ]


FINISHED = [FinishedRequest(102, "chatcmpl-a", "stop", 1, 20, 300), FinishedRequest(103, "chatcmpl-b", output_tokens=7)]


def batch(body: ExportTraceServiceRequest) -> Batch:
    """Return the rows of a request."""
    return convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())


def test_steps_are_stored_as_recorded() -> None:
    """Every field of every step is kept, unknown fields are NULL, and times are exact to the microsecond."""
    given = steps(50)
    found = batch(steps_request(ENGINE, given, FINISHED))
    assert (found.steps.schema, found.requests.schema) == (ENGINE_STEPS.schema, ENGINE_REQUESTS.schema)
    rows = found.steps.to_pylist()
    assert [row["step"] for row in rows] == [step.number for step in given]
    assert [row["recorded_at"].value for row in rows] == [step.recorded_ns for step in given]
    for name in ("interval_us", "running", "waiting", "prefill_tokens", "decode_tokens", "draft_tokens", "interval_max_us"):
        assert [row[name] for row in rows] == [getattr(step, name) for step in given], name
    assert {row["engine_id"] for row in rows} == {"host:8000"} and rows[0]["engine_epoch"].value == ENGINE.epoch_ns
    requests = found.requests.to_pylist()
    assert [(row["response_id"], row["reason"], row["preemptions"], row["output_tokens"]) for row in requests] == [
        ("chatcmpl-a", "stop", 1, 300),
        ("chatcmpl-b", "", 0, 7),
    ]
    assert (found.spans, found.chunks, found.revs.num_rows) == (1, 50, 0)


def test_requests_with_one_id_in_a_flush_are_all_stored_once(store: Store) -> None:
    """Sequences of a request with n > 1 have its id, and a version of vLLM may give no id; a retry stores none again."""
    finished = [FinishedRequest(101 + number, name, output_tokens=number) for number, name in enumerate(("a", "", "a", "b", "a", ""))]
    midnight_ns = NOW_NS // DAY_NS * DAY_NS
    at_midnight = [FinishedRequest(7, "a", output_tokens=number) for number in range(3)]
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    for body in (steps_request(ENGINE, steps(6), finished), steps_request(ENGINE, [Step(7, midnight_ns)], at_midnight)) * 2:
        committer.submit(batch(body)).result()
    committer.close()
    rows = store.select(
        "SELECT response_id, groupArray(output_tokens) FROM (SELECT * FROM engine_requests FINAL ORDER BY ALL) GROUP BY ALL"
    )
    assert {str(name): sorted(tokens) for name, tokens in rows} == {"a": [0, 0, 1, 2, 2, 4], "b": [3], "": [1, 5]}
    ((days,),) = store.select("SELECT uniqExact(toDate(recorded_at)) FROM engine_requests WHERE step = 7")
    assert int(days) == 1


def test_a_repeated_or_divided_flush_is_stored_once(store: Store) -> None:
    """Steps and requests have the same keys when they are sent again, in other flushes, or together with streams."""
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    both = steps_request(ENGINE, steps(40), FINISHED)
    native_span(both)
    for body in (
        both,
        steps_request(ENGINE, steps(40), FINISHED),
        steps_request(ENGINE, steps(40)[:15]),
        steps_request(ENGINE, steps(40)[15:]),
    ):
        assert committer.submit(batch(body)).result(20).rejected == 0
    committer.close()
    assert store.select("SELECT count(), uniqExact(step) FROM engine_steps") == [(40, 40)]
    assert store.select("SELECT count() FROM engine_requests") == [(2,)]
    assert store.select("SELECT count() FROM streams") == [(1,)]
    assert metrics.registry.get_sample_value("legato_engine_rows_total", {"table": "engine_steps", "outcome": "stored"}) == 40
    assert metrics.registry.get_sample_value("legato_engine_rows_total", {"table": "engine_steps", "outcome": "duplicate"}) == 80


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("legato.engine.id", "", "attribute"),
        ("legato.engine.id", 7, "attribute"),
        ("legato.engine.epoch", -1, "attribute"),
        ("legato.engine.steps", b"\x02\x00", "timeline"),
        ("legato.engine.steps", 5, "attribute"),
        ("legato.engine.finished.response_id", "one", "attribute"),
        ("legato.engine.finished.response_id", ["a", "b", "c"], "attribute"),
        ("legato.engine.finished.preemptions", [1, -2], "attribute"),
    ],
)
def test_a_bad_flush_is_rejected_alone(key: str, value: object, reason: str) -> None:
    """The rejection names key and type; another flush and a stream in the same request are stored."""
    body = steps_request(ENGINE, steps(5), FINISHED)
    bad = body.resource_spans[0].scope_spans[0].spans[0]
    body.resource_spans[0].scope_spans[0].spans.add().CopyFrom(
        steps_request(ENGINE, steps(7, 200)).resource_spans[0].scope_spans[0].spans[0]
    )
    native_span(body)
    for attribute in bad.attributes:
        if attribute.key == key:
            attribute.value.CopyFrom(any_value(value))
    found = batch(body)
    assert found.rejected["reason"].to_pylist() == [reason]
    assert (found.steps.num_rows, found.requests.num_rows, found.revs.num_rows) == (7, 0, 1)
