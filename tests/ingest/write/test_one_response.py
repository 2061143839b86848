"""One row a response: rows of several emitters, in one request and in several, in every order, and of two instances on one store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.batches import received_spans
from helpers.builders.captures import capture
from helpers.builders.spans import SECOND_NS, any_value, native_span, request, scope_of, steady_timeline
from helpers.servers.committing import PATIENCE_S, StoreDouble, committing, send, span_rows, wait_until_taken
from helpers.servers.waiting import until
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.storage import Store
from legato_ingest.write import one_response
from legato_ingest.write.committer import Committer
from legato_ingest.write.one_response import Place, stored_recordings, superseding
from legato_ingest.write.recordings import Recording
from legato_ingest.write.second_look import SecondLook

TRACE, ID = b"t" * 16, "chatcmpl-1"
NOW_NS = time.time_ns() - 60 * SECOND_NS


def spans_of(kind: str, service: str = "shop") -> ExportTraceServiceRequest:
    """A request with Legato's row of the response, or with that around it of a library that sends a summary."""
    if kind == "legato":
        body = request({"service.name": "shop"})
        native_span(
            body,
            {"legato.stream.timeline": steady_timeline(), "gen_ai.response.id": ID, "gen_ai.request.model": "m"},
            trace_id=TRACE,
            span_id=b"l" * 8,
            start_ns=NOW_NS,
        )
        scope_of(body).spans[0].parent_span_id = b"p" * 8
        return body
    body = request({"service.name": service}, {"x": 1})
    scope_of(body).scope.name = "openlit.instrumentation.openai"
    span = scope_of(body).spans.add(
        trace_id=TRACE,
        span_id=b"p" * 8,
        name="chat m",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=NOW_NS,
        end_time_unix_nano=NOW_NS + 2 * SECOND_NS,
    )
    for key, value in {"gen_ai.request.stream": True, "gen_ai.response.id": ID, "gen_ai.request.model": "m"}.items():
        span.attributes.add(key=key, value=any_value(value))
    return body


@pytest.mark.parametrize("order", [("legato", "openlit"), ("openlit", "legato")])
@pytest.mark.parametrize("restarted", [False, True])
def test_the_store_shows_one_row_whichever_comes_first(store: Store, order: Sequence[str], restarted: bool) -> None:
    """In separate requests, each sent twice, also with a restart in between; and the count says what stepped back."""
    for part in [order[:1], order[1:]] if restarted else [order]:
        with committing(store) as committer:
            for kind in (*part, *part):
                send(committer, spans_of(kind))
    assert store.select("SELECT emitter, outcome FROM streams") == [("legato-python/0.1.0", "complete")]
    counted = {str(result): int(spans) for result, spans in store.select("SELECT result, sum(spans) FROM emitter_spans GROUP BY result")}
    assert counted["same_response"] >= 1
    assert counted.get("stored", 0) == (order[0] == "openlit")


@pytest.mark.parametrize("service", ["litellm", "default", "/app/main.py"])
def test_a_library_with_its_default_service_name_makes_no_second_row(store: Store, service: str) -> None:
    """LiteLLM, OpenLIT and Traceloop name the service themselves, where the application named it to Legato alone."""
    with committing(store) as committer:
        for kind in ("openlit", "legato"):
            send(committer, spans_of(kind, service))
    assert store.select("SELECT emitter, service_name FROM streams") == [("legato-python/0.1.0", "shop")]


def test_the_other_row_of_a_response_may_come_days_later(store: Store) -> None:
    """It waited in the queue of a Collector. Meanwhile the server was started again, and the tenant sent nothing."""
    with committing(store) as committer:
        send(committer, spans_of("openlit"))
    counted = "SELECT * REPLACE (received_at - INTERVAL 3 DAY AS received_at) FROM emitter_spans"
    store.command(f"INSERT INTO emitter_spans {counted}")
    store.command("ALTER TABLE emitter_spans DELETE WHERE received_at > now() - INTERVAL 1 DAY SETTINGS mutations_sync = 1")
    with committing(store) as committer:
        send(committer, spans_of("legato"))
    assert store.select("SELECT emitter FROM streams") == [("legato-python/0.1.0",)]


OPENINFERENCE = {
    "openinference.span.kind": "LLM", "llm.model_name": "gpt-4o-2024-08-06", "output.value": f'{{"id": "{ID}"}}',
    "llm.invocation_parameters": '{"model": "gpt-4o", "stream": true}',
}  # fmt: skip
LANGFUSE = {
    "langfuse.observation.type": "generation", "langfuse.observation.model.name": "gpt-4o-2024-08-06",
    "langfuse.observation.completion_start_time": '"2026-11-23T15:26:25.646018Z"',
}  # fmt: skip


@pytest.mark.parametrize("attributes", [OPENINFERENCE, LANGFUSE])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_provider_that_answers_by_a_dated_name_has_one_row(store: Store, attributes: dict[str, str], order: Sequence[int]) -> None:
    """The model was asked for as `gpt-4o`. Both libraries send the name of the answer, one of them without the response's id."""
    own, foreign = request({"service.name": "shop"}), request({"service.name": "shop"}, {"x": 1})
    answer = {"gen_ai.response.id": ID, "gen_ai.request.model": "gpt-4o", "gen_ai.response.model": "gpt-4o-2024-08-06"}
    native_span(own, {"legato.stream.timeline": steady_timeline(), **answer}, trace_id=TRACE, span_id=b"l" * 8, start_ns=NOW_NS)
    span = scope_of(foreign).spans.add(trace_id=TRACE, span_id=b"p" * 8, name="ChatCompletion", start_time_unix_nano=NOW_NS)
    span.end_time_unix_nano = scope_of(own).spans[0].end_time_unix_nano
    for key, value in attributes.items():
        span.attributes.add(key=key, value=any_value(value))
    with committing(store) as committer:
        for number in order:
            send(committer, (own, foreign)[number])
    shown = store.select("SELECT emitter, model, response_model FROM streams")
    assert shown == [("legato-python/0.1.0", "gpt-4o", "gpt-4o-2024-08-06")]


def native_rows(emitter: str, *revs: int, response_id: str = ID, has_ended: bool = True) -> ExportTraceServiceRequest:
    """A request with these revs of one stream of the response. The last of them is its end, if it has one."""
    body = request({"service.name": "shop"}, {"legato.emitter": emitter})
    own = {"gen_ai.response.id": response_id, "gen_ai.request.model": "m"}
    for rev in revs:
        if rev == revs[-1] and has_ended:
            name, span_id, more = "chat m", response_id[-8:].encode(), {}
        else:
            more = {"legato.stream.outcome": "running", "legato.stream.span_id": response_id[-8:].encode().hex()}
            name, span_id = "legato.stream.snapshot", b"s%07d" % rev
        native_span(body, {**own, **more, "legato.stream.rev": rev}, name=name, trace_id=TRACE, span_id=span_id, start_ns=NOW_NS)
    return body


@pytest.mark.parametrize("emitter", ["acme/1", "legato-x/1"])
def test_the_end_of_a_stream_is_stored_beside_its_snapshot(store: Store, emitter: str) -> None:
    """Within one insert, whatever the emitter's name is: WIRE.md asks for none."""
    with committing(store) as committer:
        send(committer, native_rows(emitter, 1, 2))
        assert committer._metrics.registry.get_sample_value("legato_duplicate_spans_total") == 0
    assert store.select("SELECT rev, outcome FROM streams") == [(2, "complete")]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_no_rev_of_a_stream_that_steps_back_stays(store: Store, before: int) -> None:
    """Not an earlier one either, of the same insert or of one before: it would be the newest then, and its stream abandoned."""
    last = native_rows("acme/1", *range(before + 1, 4))
    last.MergeFrom(spans_of("legato"))
    with committing(store) as committer:
        for rev in range(1, before + 1):
            send(committer, native_rows("acme/1", rev, has_ended=False))
        for _ in range(2):
            send(committer, last)
            assert store.select("SELECT emitter, outcome FROM streams") == [("legato-python/0.1.0", "complete")]


def test_a_row_with_the_last_rev_steps_back_for_good(store: Store) -> None:
    """An earlier version stored it. There is no next rev: the insert failed, and with it all others."""
    rows = received_spans(native_rows("acme/1", 1), tenant="", now_ns=NOW_NS, limits=Limits(retention_days=0)).revs
    stored = rows.set_column(rows.column_names.index("rev"), rows.schema.field("rev"), pa.array([2**32 - 1], pa.uint32()))
    store.insert("stream_revs", stored)
    for _ in range(2):
        with committing(store) as committer:
            send(committer, native_rows("acme/1", 1, response_id="chatcmpl-2"))
            assert not send(committer, spans_of("legato"))[0].rejected
            send(committer, native_rows("acme/1", 1))
        assert store.select(f"SELECT emitter, outcome FROM streams WHERE response_id = '{ID}'") == [("legato-python/0.1.0", "complete")]


def test_a_real_pair_is_one_row(store: Store) -> None:
    """The captured traffic of applications with OpenLLMetry or Logfire and Anthropic's own spans: the rows with TTFT stay."""
    with committing(store) as committer:
        for name in ("python-openllmetry-anthropic-plain", "python-logfire-anthropic-plain"):
            for batch in capture(name).batches():
                committer.submit(batch).result(30)
    assert store.select("SELECT emitter, ttft_us > 0 FROM streams") == [("anthropic-sdk/2.12.0", 1)] * 2


def test_many_rows_of_one_tenant_hide_none_of_another(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two have more rows of a response, stored and new, than are compared; the other's response still has one row."""
    monkeypatch.setattr("legato_ingest.write.one_response.STORED_MAX", 2)
    monkeypatch.setattr("legato_ingest.write.one_response._NEW_MAX", 20)

    def flood(first: int, tenant: str) -> Batch:
        body = spans_of("openlit")
        spans = scope_of(body).spans
        for number in range(first, first + 60):
            span = spans.add()
            span.CopyFrom(spans[0])
            span.span_id = number.to_bytes(8, "big")
        return received_spans(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits(retention_days=0))

    def of_other(kind: str) -> Batch:
        return received_spans(spans_of(kind), tenant="other", now_ns=time.time_ns(), limits=Limits(retention_days=0))

    double = StoreDouble(store)
    with committing(double) as committer:
        for tenant in ("a", "z"):
            committer.submit(flood(1, tenant)).result(PATIENCE_S)
        committer.submit(of_other("openlit")).result(PATIENCE_S)
        # What waits while an insert lasts is inserted together.
        double.gate.clear()
        first = committer.submit(flood(200, "a"))
        wait_until_taken(committer)
        together = [committer.submit(each) for each in (flood(100, "a"), of_other("legato"), flood(100, "z"))]
        double.gate.set()
        for each in (first, *together):
            each.result(PATIENCE_S)
    assert store.select("SELECT emitter FROM streams WHERE tenant = 'other'") == [("legato-python/0.1.0",)]


class Racing(StoreDouble):
    """A store with an insert of a stream that waits until ``released``, and with comparisons that raise ``errors`` first."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.compared, self.released = threading.Event(), threading.Event()
        self.errors: list[Exception] = []
        self.before = self._wait

    def _wait(self, table: str, rows: pa.Table) -> None:
        if table == "stream_revs":
            self.compared.set()
            assert self.released.wait(PATIENCE_S)

    def select_arrow(self, sql: str) -> pa.Table:
        """Raise the next error, or run the query."""
        if self.errors and "any_chunk" in sql:
            raise self.errors.pop(0)
        return self._store.select_arrow(sql)


@contextmanager
def doubled(store: Store, kinds: Sequence[str], *errors: Exception) -> Iterator[Committer]:
    """Two instances have inserted the rows of one response, and neither saw the other's. Yield the one that inserted last."""
    racing = Racing(store)
    with committing(racing, look_again_s=0.2) as last, committing(store, look_again_s=0.2) as first:
        waiting = last.submit(span_rows(spans_of(kinds[0])))
        assert racing.compared.wait(PATIENCE_S)
        send(first, spans_of(kinds[1]))
        until(lambda: first._groups._second_look.due_in_s() is None)
        racing.errors += errors
        racing.released.set()
        waiting.result(PATIENCE_S)
        yield last


@pytest.mark.parametrize("kinds", [("legato", "openlit"), ("openlit", "legato")])
def test_a_row_that_another_instance_inserted_at_the_same_moment_steps_back(store: Store, kinds: Sequence[str]) -> None:
    """Also if the store does not answer at first. The row is counted by the instance that inserted it, if that one looked last."""
    with doubled(store, kinds, StoreUnavailable("down")) as last:
        assert store.select("SELECT count() FROM streams") == [(2,)]
        until(lambda: store.select("SELECT count() FROM streams") == [(1,)])
        assert last._metrics.registry.get_sample_value("legato_errors_total", {"stage": "one_response", "type": "StoreUnavailable"}) == 1
    assert store.select("SELECT emitter, outcome FROM streams") == [("legato-python/0.1.0", "complete")]
    counted = {str(result): int(spans) for result, spans in store.select("SELECT result, sum(spans) FROM emitter_spans GROUP BY result")}
    assert counted == {"stored": 1} | ({"same_response": 1} if kinds[0] == "openlit" else {})


def test_a_comparison_that_the_store_refuses_is_given_up(store: Store) -> None:
    """It would fail for ever. Both rows stay, and an error is counted."""
    with doubled(store, ("legato", "openlit"), StoreRefused("too long", 62)) as last:
        until(lambda: last._groups._second_look.due_in_s() is None)
        assert last._metrics.registry.get_sample_value("legato_errors_total", {"stage": "one_response", "type": "62"}) == 1
    assert store.select("SELECT count() FROM streams") == [(2,)]


def raised(error: StoreRefused) -> None:
    """Raise it: no query of the test is refused."""
    raise error


@pytest.mark.parametrize("reads_max", [1_000, 100_000])
def test_a_tenant_with_too_many_rows_in_a_minute_keeps_no_other_from_its_comparison(
    store: Store, monkeypatch: pytest.MonkeyPatch, reads_max: int
) -> None:
    """Each insert with a row of that minute waited for all of its rows to be read."""
    sql = one_response._STORED.replace(str(one_response._READ_MAX), str(reads_max))
    monkeypatch.setattr("legato_ingest.write.one_response._STORED", sql)
    at_ns = NOW_NS // (60 * SECOND_NS) * 60 * SECOND_NS - 600 * SECOND_NS
    for tenant, rows in (("few", 3), ("many", 20_000)):
        store.command(
            "INSERT INTO stream_revs (tenant, start_time, trace_id, span_id, rev, duration_ns, vantage, response_id, emitter) SELECT"
            f" '{tenant}', fromUnixTimestamp64Nano({at_ns} + number), toFixedString(leftPad(toString(number), 16, '0'), 16),"
            f" toFixedString(leftPad(toString(number), 8, '0'), 8), 1, 1000000000, 'client', '{ID}', 'openlit/1' FROM numbers({rows})"
        )
    errors = list[StoreRefused]()
    like = [Place(tenant, b"%016d" % 2, at_ns, "") for tenant in ("few", "many")]
    found = {each.tenant for each in stored_recordings(store, like, errors.append)}
    assert (found, [each.code for each in errors]) == (({"few"}, [158]) if reads_max < 20_000 else ({"few", "many"}, []))


def test_an_id_in_thousands_of_traces_costs_little(store: Store) -> None:
    """A commit reads a few of the rows with this id, and those of the same traces."""
    key = "toFixedString(leftPad(toString(number), 16, '0'), 16), toFixedString(leftPad(toString(number), 8, '0'), 8)"
    store.command(
        "INSERT INTO stream_revs (start_time, trace_id, span_id, rev, duration_ns, vantage, response_id, emitter)"
        f" SELECT now64(9), {key}, 1, 1000000000, 'client', if(number < 3000, '{ID}', ''), 'openlit/1' FROM numbers(3100)"
    )
    trace = b"%016d" % 3050
    found = stored_recordings(store, [Place("", trace, time.time_ns(), ID)], raised)
    assert len(found) < 100 and [each.span_id for each in found if each.trace_id == trace] == [b"%08d" % 3050]


class Asked:
    """A store that returns no rows, and remembers the queries."""

    def __init__(self) -> None:
        self.queries = list[str]()

    def select_arrow(self, sql: str) -> pa.Table:
        """Remember the query."""
        self.queries.append(sql)
        return pa.table({})


def test_a_query_names_the_ids_of_its_rows_alone() -> None:
    """Long response ids at many times, and at one: the queries are short, and together not much longer than the ids."""
    for spread in (15, 1):
        asked, places = Asked(), list[Place]()
        for number in range(5_000):
            places.append(Place("a", b"%016d" % number, NOW_NS - number % spread * 200 * SECOND_NS, f"{number:08}" * 125))
        assert not stored_recordings(cast(Store, asked), places, raised)
        assert max(map(len, asked.queries)) < 5 * 2**20 and sum(map(len, asked.queries)) < 3 * 5_000 * 1_000
        assert all(sum((f"{number:08}" * 125).encode().hex() in sql for sql in asked.queries) == 1 for number in (0, 1, 4_999))


def test_thousands_of_rows_that_step_back_take_little_time() -> None:
    """One row of Legato's beats all foreign rows of its response. A table for each took 2 ms, and every sender waited."""
    rest = (bytes(8), 1, "client", "shop", "m", "", ID, "openlit/1", NOW_NS, 2 * SECOND_NS, False, False, False)
    rows = [Recording(f"t{number % 3}", TRACE, b"%08d" % number, *rest) for number in range(2_000)]
    began_s = time.process_time()
    out = superseding(rows)
    assert time.process_time() - began_s < 1
    keys = {(each["tenant"], each["span_id"], each["rev"], each["outcome"]) for each in out.to_pylist()}
    assert keys == {(each.tenant, each.span_id, 2, "superseded") for each in rows}


def test_an_error_of_the_second_look_fails_no_request(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are stored, so the sender need not send them again; the look is postponed."""
    monkeypatch.setattr(SecondLook, "lost", lambda _: 1 // 0)
    with committing(store, look_again_s=0.05) as committer:
        for number in range(3):
            assert not send(committer, spans_of("legato" if number else "openlit"))[0].rejected
        errors = {"stage": "write_waiting", "type": "ZeroDivisionError"}
        until(lambda: (committer._metrics.registry.get_sample_value("legato_errors_total", errors) or 0) > 0)
    assert store.select("SELECT count() FROM streams") == [(1,)]
