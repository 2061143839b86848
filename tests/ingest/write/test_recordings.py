"""Which rows are of one response, and which of them wins, in every order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.spans import SECOND_NS
from helpers.platform.examples import examples
from legato_ingest.write.recordings import Recording, losers

TRACE, ID = b"t" * 16, "chatcmpl-1"
NOW_NS = time.time_ns() - 60 * SECOND_NS
BASE: dict[str, Any] = {
    "tenant": "", "trace_id": TRACE, "span_id": b"a" * 8, "parent_span_id": bytes(8), "rev": 1, "vantage": "client", "service_name": "shop",
    "model": "m", "response_model": "", "response_id": ID, "emitter": "openlit/1", "start_ns": NOW_NS, "duration_ns": 2 * SECOND_NS,
    "has_chunks": False, "has_ttft": False, "any_chunk": False,
}  # fmt: skip


def recording(**values: Any) -> Recording:
    """A row of a foreign emitter with these differences."""
    return Recording(**{**BASE, **values})


LEGATO = recording(emitter="legato-python/0.1.0", span_id=b"l" * 8, has_chunks=True, has_ttft=True)
CHUNKS = recording(emitter="openllmetry/1", span_id=b"c" * 8, has_chunks=True, has_ttft=True)
TTFT = recording(emitter="openinference/1", span_id=b"f" * 8, has_ttft=True)
ANY = recording(emitter="otel-genai/1", span_id=b"g" * 8, has_ttft=True, any_chunk=True)


@pytest.mark.parametrize("order", list(itertools.permutations((LEGATO, CHUNKS, TTFT, ANY))))
def test_the_richest_row_stays_in_every_order(order: Sequence[Recording]) -> None:
    """Legato's own wins, then chunks, then TTFT; what stays does not depend on the order."""
    assert {loser for loser, _ in losers(order)} == {CHUNKS, TTFT, ANY}
    assert {winner for _, winner in losers([each for each in order if each is not LEGATO])} == {CHUNKS}
    assert losers([each for each in order if each in (TTFT, ANY)]) == [(ANY, TTFT)]


@pytest.mark.parametrize(
    "difference",
    [
        {"response_id": "chatcmpl-2"},
        {"vantage": "server"},
        {"service_name": "proxy"},
        {"tenant": "other"},
        {"start_ns": NOW_NS + 3 * SECOND_NS},
        {"response_id": "", "model": "another", "parent_span_id": b"l" * 8},
        {"response_id": "", "start_ns": NOW_NS + SECOND_NS, "duration_ns": SECOND_NS},
    ],
)
def test_rows_of_different_responses_stay(difference: dict[str, Any]) -> None:
    """Another id, vantage, service, tenant or time is another response; without an id, another model or another stretch of time is."""
    assert losers([LEGATO, recording(**difference)]) == []


@pytest.mark.parametrize("default", ["litellm", "default", "/app/.venv/bin/uvicorn", "./serve", "app/main.py", "C:\\app\\serve.exe"])
def test_a_default_name_of_a_library_is_none(default: str) -> None:
    """Beside a row of the same parent, or of a parent and its child. Elsewhere, and of Legato's rows, it is that of a service."""
    own = replace(LEGATO, parent_span_id=b"p" * 8)
    for foreign in (recording(parent_span_id=b"p" * 8), recording(parent_span_id=own.span_id), recording(span_id=b"p" * 8)):
        named = replace(foreign, service_name=default)
        assert losers([own, named]) == [(named, own)]
        assert losers([replace(own, service_name=default), foreign]) == []
        assert losers([own, replace(named, start_ns=NOW_NS + 3 * SECOND_NS)]) == []
        assert losers([own, replace(foreign, service_name="team/proxy")]) == []
    # A span of a proxy's server is between its row and that of the application.
    assert losers([own, recording(parent_span_id=b"x" * 8, service_name=default)]) == []
    assert losers([LEGATO, recording(service_name=default)]) == []


def test_without_an_id_the_parent_and_the_time_decide() -> None:
    """A framework's span around the client library's, or one of the same time, is of the same response; two of Legato's never are."""
    outer = recording(span_id=b"o" * 8, response_id="", start_ns=NOW_NS - SECOND_NS, duration_ns=4 * SECOND_NS)
    inner = recording(span_id=b"i" * 8, parent_span_id=b"o" * 8, emitter="openllmetry/1", has_chunks=True)
    beside = recording(span_id=b"b" * 8, response_id="", start_ns=NOW_NS + 1000)
    assert losers([outer, inner]) == [(outer, inner)]
    assert losers([LEGATO, beside]) == [(beside, LEGATO)]
    assert losers([LEGATO, recording(emitter="legato-python/0.1.0")]) == []


@pytest.mark.parametrize("asked", ["gpt-4o", "gpt-4o-latest", "my-deployment", "openai/gpt-4o"])
def test_a_provider_that_answers_by_another_name(asked: str) -> None:
    """A dated name, or that behind an alias or a deployment. The id decides; without one, the names that either row has."""
    dated = "gpt-4o-2024-08-06"
    own = replace(LEGATO, model=asked, response_model=dated)
    for foreign in (recording(model=dated), recording(model=asked, response_model=dated), recording(model=asked, response_model="")):
        for response_id in (ID, ""):
            beside = replace(foreign, response_id=response_id)
            assert losers([own, beside]) == [(beside, own)]
    # A row that does not say which model answered may be of this one only if they have one id.
    silent, beside = replace(own, response_model=""), recording(model=dated)
    assert losers([silent, beside]) == [(beside, silent)]
    assert losers([silent, replace(beside, response_id="")]) == []
    assert losers([own, recording(model=dated, response_id="chatcmpl-2")]) == []


def test_a_row_of_logfire_steps_back_for_that_of_the_sdk() -> None:
    """Logfire's row has no id and a trace apart, and begins with the headers; a stream that ends at another time is another one."""
    sdk = recording(emitter="anthropic-sdk/2", has_ttft=True)
    beside = recording(emitter="logfire/5", trace_id=b"u" * 16, response_id="", start_ns=NOW_NS + SECOND_NS, duration_ns=SECOND_NS)
    assert losers([beside, sdk]) == [(beside, sdk)]
    another = {"model": "another"}, {"service_name": "proxy"}, {"emitter": "openlit/1"}, {"tenant": "other"}
    for difference in ({"duration_ns": 2 * SECOND_NS}, *another):
        assert losers([sdk, replace(beside, **difference)]) == []


def test_another_trace_with_the_same_response_at_the_same_time_is_the_same() -> None:
    """Anthropic's own span and OpenLLMetry's are roots of two traces. Some servers repeat their ids, so the times decide, too."""
    other = recording(trace_id=b"u" * 16)
    assert losers([TTFT, other]) == [(other, TTFT)]
    later = recording(trace_id=b"u" * 16, start_ns=NOW_NS + SECOND_NS, duration_ns=2 * SECOND_NS)
    assert losers([TTFT, later]) == []


def test_an_agents_span_takes_none_of_its_requests() -> None:
    """Two requests in a row below one span are two responses; and no row loses to one that contradicts it."""
    agent = recording(span_id=b"o" * 8, response_id="", duration_ns=10 * SECOND_NS, has_chunks=True)
    first = recording(span_id=b"1" * 8, parent_span_id=b"o" * 8, response_id="", start_ns=NOW_NS, duration_ns=4 * SECOND_NS)
    second = recording(
        span_id=b"2" * 8, parent_span_id=b"o" * 8, response_id="", start_ns=NOW_NS + 5 * SECOND_NS, duration_ns=4 * SECOND_NS
    )
    assert losers([agent, first, second]) == []
    outer = recording(span_id=b"o" * 8, response_id="", has_chunks=True)
    one = recording(span_id=b"1" * 8, parent_span_id=b"o" * 8, response_id="one")
    other = recording(span_id=b"2" * 8, parent_span_id=b"o" * 8, response_id="other", emitter="legato-python/0.1.0")
    assert losers([outer, one, other]) == [(outer, other)]


def test_an_id_in_many_traces_identifies_no_response() -> None:
    """Some servers send one id for ever. Two rows in one trace are still of one response."""
    own = [recording(emitter="legato-python/0.1.0", span_id=bytes([number]) * 8, trace_id=bytes([number]) * 16) for number in range(1, 30)]
    foreign = [recording(span_id=bytes([100 + number]) * 8, trace_id=bytes([number + 100]) * 16) for number in range(1, 30)]
    beside = recording(span_id=b"z" * 8, trace_id=own[3].trace_id)
    assert losers([*own, *foreign, beside]) == [(beside, own[3])]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_parallel_requests_to_a_server_with_one_id_stay(order: Sequence[int]) -> None:
    """One emitter made both rows: they are two requests, or an engine's two choices of one. Another emitter's rows still step back."""
    same = [recording(span_id=bytes([1 + number]) * 8, start_ns=NOW_NS + number, has_ttft=True) for number in range(2)]
    others = [recording(span_id=bytes([9 + number]) * 8, emitter="otel-genai/1", start_ns=NOW_NS + number) for number in range(2)]
    assert losers(same) == [] and losers([replace(each, vantage="engine", emitter="engine-request") for each in same]) == []
    assert losers([same[0], replace(same[1], trace_id=b"u" * 16)]) == []
    rows = [*same, *others]
    assert {loser for loser, _ in losers(rows[number] for number in order)} == set(others)
    richer = [replace(others[0], has_chunks=True), others[1]]
    assert {loser for loser, _ in losers([*same, *richer][number] for number in order)} == set(same)


def test_a_row_inside_of_one_of_the_same_emitter_is_of_the_same_response() -> None:
    """A library may record a framework and its client under one name. A span that is sent twice is one row."""
    outer = recording(span_id=b"o" * 8, has_ttft=True)
    inner = recording(span_id=b"i" * 8, parent_span_id=b"o" * 8)
    assert losers([outer, inner]) == [(inner, outer)]
    assert losers([outer, replace(outer, place=(0, 0))]) == []


@given(st.permutations(range(3)), st.booleans())
@examples(20)
def test_the_revs_of_one_stream_are_one_recording(order: Sequence[int], is_richer: bool) -> None:
    """Whatever its emitter: a snapshot never wins against the end of its stream, and the end alone is compared with other rows."""
    revs = [recording(span_id=b"n" * 8, emitter="acme/1", rev=rev, has_chunks=is_richer, place=(0, rev)) for rev in (1, 2, 3)]
    shuffled = [revs[number] for number in order]
    assert losers(shuffled) == []
    assert losers([*shuffled, LEGATO]) == [(revs[2], LEGATO)]
    assert losers([*shuffled, TTFT]) == [(TTFT, revs[2]) if is_richer else (revs[2], TTFT)]


def test_a_row_that_names_itself_as_its_parent_stays() -> None:
    """No row steps back for itself. It is still compared with others."""
    selfish = recording(parent_span_id=b"a" * 8)
    assert losers([selfish]) == []
    assert losers([selfish, LEGATO]) == [(selfish, LEGATO)]
