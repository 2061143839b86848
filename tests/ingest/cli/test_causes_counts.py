"""Which streams the figures of `legato blame` count: those of the judged vantage, and with `--engine` those of this engine."""

from __future__ import annotations

import time

from helpers.builders.world_spans import put
from helpers.servers.command import read_json, read_text
from helpers.servers.reading import reading, stream, streams_in
from legato_gpu_agent.agent.otlp_spans import Engine, steps_request
from legato_gpu_agent.plugin.model import FinishedRequest, Step
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store

STALLED = (20.0,) * 20 + (700.0,) + (20.0,) * 20


def judge(store: Store) -> None:
    """Judge all streams."""
    AttributionWorker(store, load(attribute_grace_s=0, stall_ms=100), Metrics()).again(0)


def test_verdicts_of_a_server_are_not_counted_once_its_client_is_judged(store: Store) -> None:
    """The server's two were withdrawn; three of four stalls are judged, and one was open at its stream's end."""
    begun, trace = time.time_ns() - 60 * 10**9, b"t" * 16
    for vantage, gaps in (("server", STALLED * 2), ("client", STALLED * 3)):
        at = {"legato.stream.vantage": vantage}
        streams_in(store, [stream(gaps, attributes=at, trace_id=trace, start_ns=begun)], f"shop-{vantage}", seed=len(gaps))
        if vantage == "server":
            judge(store)
    streams_in(store, [stream((20.0,) * 30, end_ms=900, attributes={"legato.stream.outcome": "client_cancel"})], seed=1)
    judge(store)
    assert store.select("SELECT countIf(cause = 'base'), count() FROM verdicts FINAL") == [(2, 5)]
    with reading(store) as url:
        found, page = read_json(url, "blame"), read_text(url, "blame")
        of_server, said = read_json(url, "blame", "--service", "shop-server"), read_text(url, "blame", "--service", "shop-server")
        begin = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(begun // 10**9 - 60))
        incident = read_text(url, "incident", "--from", begin, "--service", "shop-server")
    assert (found["stalls_250ms_judged"], found["stalls_250ms"], found["stalls_250ms_judged_at_clients"]) == (3, 4, 0)
    assert (of_server["stalls_250ms"], of_server["stalls_250ms_judged_at_clients"], of_server["causes"]) == (0, 2, [])
    assert "Judged at the clients: 2 stalls of this service's streams." in " ".join(said.split())
    assert "Judged at the clients, on the page of their service: 2 stalls of its streams." in " ".join(incident.split())
    assert "1 of 4 stalls of 250 ms or more have no verdict" in " ".join(page.split())


def test_a_stall_that_is_judged_at_a_server_beside_another_client_is_counted(store: Store) -> None:
    """The client of call b was not recorded: its stall is one of the server's, and none that is judged at the client of call a."""
    begun, trace = time.time_ns() - 60 * 10**9, b"t" * 16
    calls = (("client", "app", "a", STALLED), ("server", "vllm", "a", STALLED * 2), ("server", "vllm", "b", STALLED * 3))
    for seed, (vantage, service, response, gaps) in enumerate(calls):
        attributes = {"legato.stream.vantage": vantage, "gen_ai.response.id": response}
        streams_in(store, [stream(gaps, attributes=attributes, trace_id=trace, start_ns=begun)], service, seed=seed)
    judge(store)
    names = ("stalls_250ms", "stalls_250ms_judged", "stalls_250ms_judged_at_clients", "stalls")
    with reading(store) as url:
        counted = {service: [read_json(url, "blame", "--service", service)[name] for name in names] for service in ("app", "vllm")}
        of_all, page = read_json(url, "blame"), read_text(url, "blame", "--service", "vllm")
    assert counted == {"app": [1, 1, 0, 1], "vllm": [3, 3, 2, 3]}
    assert [of_all[name] for name in names] == [4, 4, 0, 4]
    assert "Judged at the clients: 2 stalls of this service's streams." in " ".join(page.split())


def served(store: Store, response: str, engine: str, first_ms: float, trace: bytes, seed: int) -> None:
    """A stream at its server, which knows the engine, and at its client, which does not; the server sent the first token 10 ms before."""
    for vantage, at_ms in (("server", first_ms - 10), ("client", first_ms)):
        attributes = {"legato.stream.vantage": vantage, "gen_ai.response.id": response}
        attributes |= {"legato.engine.id": engine} if vantage == "server" else {}
        streams_in(store, [stream(first_ms=at_ms, attributes=attributes, trace_id=trace)], seed=seed + int(at_ms))


def test_first_tokens_of_one_engine(store: Store) -> None:
    """Its streams and its late ones alone: by the trace, and where two engines served a trace by the engine's requests."""
    served(store, "a", "one", 400, b"a" * 16, 1)
    served(store, "b", "two", 2_500, b"b" * 16, 2)
    served(store, "c", "one", 2_600, b"c" * 16, 3)
    served(store, "d", "two", 500, b"c" * 16, 4)
    now = time.time_ns() // 1000 * 1000
    for engine, responses in (("one", "ac"), ("two", "d")):
        ended = [FinishedRequest(1, response, queued_us=100_000, prefill_us=200_000) for response in responses]
        put(store, steps_request(Engine(engine, 5), [Step(1, now, interval_us=20_000, decode_requests=1)], ended), now)
    with reading(store) as url:
        found = {engine: read_json(url, "blame", "--engine", engine)["first_tokens"] for engine in ("one", "two", "none", "")}
        page = read_text(url, "blame", "--engine", "two")
        all_times = read_json(url, "blame", "--engine", "two", "--since", "all")["first_tokens"]
    counts = {engine: (row["streams"], row["late"], row["split_streams"]) for engine, row in found.items()}
    assert counts == {"one": (2, 1, 2), "two": (2, 1, 1), "none": (0, 0, 0), "": (4, 2, 3)}
    assert "1 of 2 were later than 2.00 s" in " ".join(page.split()) and all_times == found["two"]


def test_first_tokens_without_response_ids_are_not_split(store: Store) -> None:
    """Nothing shows which server and which request belong to a client: its stream is counted, and its time is not divided."""
    served(store, "", "one", 400, b"a" * 16, 1)
    served(store, "", "one", 2_600, b"a" * 16, 2)
    now = time.time_ns() // 1000 * 1000
    ended = [FinishedRequest(1, "", queued_us=100_000, prefill_us=200_000)]
    put(store, steps_request(Engine("one", 5), [Step(1, now, interval_us=20_000, decode_requests=1)], ended), now)
    with reading(store) as url:
        found = read_json(url, "blame")["first_tokens"]
    assert (found["streams"], found["late"], found["split_streams"]) == (2, 1, 0)
