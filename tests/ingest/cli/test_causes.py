"""Tests of `legato blame` and `legato reattribute` on simulated streams with known causes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from helpers.builders.world import World
from helpers.builders.world_spans import FIRST_US, PREFILL_US, QUEUED_US, put, steps
from helpers.builders.world_spans import stream as span_of
from helpers.servers.command import read_json, read_text
from helpers.servers.reading import open_store, reading, stream, streams_in
from helpers.servers.serving import legato, serve_process
from helpers.servers.waiting import until
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store

# A prompt stalls both streams, then the first is preempted, and the second waits for its recompute.
WORLD = World(prefill={100: 1500}, preempted=(200, 230))
PREFILL_MS, OWN_MS, RECOMPUTE_MS = 300, 720, 120


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The world's two streams at server and client with the engine's steps, one recorded only by its client, one cancelled."""
    received = int(WORLD.ends[-1]) + 10**9
    with open_store(tmp_path_factory.mktemp("blame") / "store") as opened:
        put(opened, steps(WORLD, 2), received)
        for number in (0, 1):
            for vantage in ("server", "client"):
                put(opened, span_of(WORLD, vantage, number), received)
        cut = stream((20,) * 30, end_ms=900, attributes={"legato.stream.outcome": "client_cancel"})
        streams_in(opened, [stream((20,) * 20 + (700,) + (20,) * 40), cut], "alone")
        AttributionWorker(opened, load(attribute_grace_s=0, stall_ms=100), Metrics()).again(0)
        yield opened


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    """The read endpoint."""
    with reading(store) as address:
        yield address


def typed(url: str, *words: str) -> str:
    """The text output of `legato blame`."""
    return read_text(url, "blame", *words)


def data(url: str, *words: str) -> Any:
    """The JSON output of `legato blame`."""
    return read_json(url, "blame", *words)


def test_causes_are_ranked_by_charged_time(url: str) -> None:
    """The charged times, the number of stalls by main cause, and the sum over all causes."""
    answer = data(url, "--since", "all")
    causes = {each["cause"]: each for each in answer["causes"]}
    assert [each["cause"] for each in answer["causes"]][:3] == ["kv_pressure", "generation", "scheduling"]
    assert causes["scheduling"]["charged_us"] == pytest.approx(2 * 1000 * PREFILL_MS, abs=10_000)
    assert causes["kv_pressure"]["charged_us"] == pytest.approx(1000 * (OWN_MS + RECOMPUTE_MS + 20), abs=10_000)
    assert causes["generation"]["charged_us"] == pytest.approx(680_000, abs=1_000)
    assert (causes["scheduling"]["stalls"], causes["scheduling"]["streams"]) == (2, 2)
    assert causes["generation"]["confidences"] == {"likely": 1} and causes["generation"]["missing"] == {"server": 1, "engine": 1}
    assert answer["stalls"] == 5 and sum(each["stalls"] for each in answer["causes"]) == 5
    charged = sum(each["charged_us"] for each in answer["causes"])
    assert charged == pytest.approx(answer["excess_us"], abs=10)


def test_the_effect_of_one_fix_is_a_counterfactual(url: str) -> None:
    """Two streams were replayed: the prompt stalled both, the preemption each of them once."""
    answer = data(url, "--since", "all")
    without = {each["cause"]: each["without"] for each in answer["causes"]}
    assert answer["replayed"]["streams"] == 2 and answer["replayed"]["stalls"] == 4
    for cause in ("scheduling", "kv_pressure"):
        assert (without[cause]["stalls"], without[cause]["stalls_min"], without[cause]["stalls_max"]) == (4, 2, 2)
    assert without["generation"] is None


def test_engine_events_name_requests_and_count_stalls(url: str) -> None:
    """The preemption is one event with its victim's stall and the wait for its recompute; the prompt's step is another."""
    preemption, prompt = data(url, "--since", "all")["events"]
    assert (preemption["cause"], preemption["responses"], preemption["stalls"], preemption["own"]) == ("kv_pressure", ["chatcmpl-1"], 2, 1)
    assert preemption["recompute_tokens"] == 600
    assert (prompt["cause"], prompt["step"], prompt["streams"], prompt["prefill_tokens"]) == ("scheduling", 100, 2, 1500)


def test_the_text_has_the_same_figures(url: str) -> None:
    """With n, missing evidence, and stalls without a verdict."""
    page = typed(url, "--since", "all")
    assert "5 stalls, " in page and "1,500 prompt tokens prefilled" in page
    assert "preempted: chatcmpl-1; recompute of 600 tokens" in page
    assert "2 of 4" in page and "engine for 1 of 5, server for 1 of 5" in page
    assert "1 of 5 stalls of 250 ms or more have no verdict: open at the stream's end" in page.replace("\n", " ").replace("  ", " ")
    assert data(url, "--since", "all", "--limit", "1")["events"][0]["cause"] == "kv_pressure"


@pytest.mark.parametrize(
    ("words", "causes"),
    [
        (["--engine", "e"], {"scheduling", "kv_pressure"}),
        (["--service", "alone"], {"generation"}),
        (["--since", "1h"], {"generation"}),
    ],
)
def test_filters(url: str, words: list[str], causes: set[str]) -> None:
    """By engine, by service, by time."""
    since = [] if "--since" in words else ["--since", "all"]
    found = {each["cause"] for each in data(url, *since, *words)["causes"] if each["stalls"]}
    assert found == causes


def test_the_time_to_the_first_token_is_divided(url: str) -> None:
    """Queue and prefill by the engine's clock, network by the difference of client and server, and the rest is the front end."""
    first = data(url, "--since", "all")["first_tokens"]
    assert (first["streams"], first["split_streams"], first["late"]) == (4, 2, 0)
    assert (first["queue_us"], first["prefill_us"]) == (2 * QUEUED_US, 2 * PREFILL_US)
    assert first["transit_us"] == 0 and first["front_end_us"] == 2 * (FIRST_US - QUEUED_US - PREFILL_US)
    assert sum(first[f"{name}_us"] for name in ("queue", "prefill", "front_end", "transit")) == first["ttft_us"]
    page = typed(url, "--since", "all").replace("\n", " ").replace("  ", " ")
    assert "(n=2): its own prefill 62.5 %, the queue 25.0 %, the front end 12.5 %, the network 0 %" in page


def test_no_stalls_is_a_sentence(url: str) -> None:
    """No table of zeros."""
    assert "no stall was judged" in typed(url, "--engine", "nothing", "--service", "nothing")


def test_reattribute_runs_in_the_process_that_holds_the_store(tmp_path_factory: pytest.TempPathFactory) -> None:
    """While `legato serve` runs, through its admin socket, else by opening the store; the old name of the command works as well."""
    folder = tmp_path_factory.mktemp("attribute")
    with serve_process(folder / "store", LEGATO_RETENTION_DAYS="0") as served:
        for body in (steps(WORLD, 1), span_of(WORLD, "server"), span_of(WORLD, "client")):
            reply = httpx.post(
                f"{served.otlp}/v1/traces", content=body.SerializeToString(), headers={"content-type": "application/x-protobuf"}
            )
            assert reply.status_code == 200
        environ = served.environ
        # The command waits for the insert, but not for longer than some seconds.
        until(lambda: httpx.post(served.read, content="SELECT count() FROM stream_revs").text == "2\n")
        first = legato("reattribute", "--since", "all", environ=environ)
        assert first.returncode == 0 and first.stdout.startswith("1 stalled streams attributed, 2 verdicts")
    time.sleep(0.1)
    again = legato("attribute", "--since", "all", environ=environ)
    assert again.returncode == 0 and again.stdout.startswith("1 stalled streams attributed, 2 verdicts"), again.stderr
    assert legato("attribute", "--since", "yesterday", environ=environ).returncode == 2


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_no_figure_is_cut_or_folded(url: str, columns: int) -> None:
    """Piped output has as many columns as COLUMNS says; a narrow one leaves out columns, and never cuts a text."""
    text = legato("blame", "--since", "all", environ={"LEGATO_READ_URL": url, "COLUMNS": str(columns)}).stdout
    assert "…" not in text and max(map(len, text.splitlines())) <= columns
    assert ("confidence" in text) == (columns > 100) and "prompt tokens" in text
