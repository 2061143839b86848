"""Tests of the data of a stream's page on a real store: equal to `legato stream --json` and to direct SQL."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from helpers.builders.batches import received_points
from helpers.builders.judging import worker
from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import SECOND_NS
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, response_id, steps, trace_id
from helpers.builders.world_spans import stream as world_stream
from helpers.dashboards.running import standing
from helpers.servers.reading import open_store, reading, stream, streams_in
from legato_ingest.cli.client import Reader
from legato_ingest.cli.read import register
from legato_ingest.otlp.batch import Limits
from legato_ingest.web.stream_view import NoSuchStream, stream_view

# Step 200 takes 600 ms longer, and 2,000 prompt tokens in step 300 make it 400 ms longer. Both stall all four streams.
WORLD = World(slow={200: 600 * MS}, prefill={300: 2_000})
RECEIVED_NS = int(WORLD.ends[-1]) + 10**9
CLOCK = "boot:4026:5000"
AGENT = bytes.fromhex("aaaaaaaa0000000000000000000000ff")
CANCELLED = bytes.fromhex("aaaaaaaa1111") + bytes(10)
ALONE = bytes.fromhex("cccccccc2222") + bytes(10)
NO_TIMELINE = ("legato.stream.timeline", "legato.stream.ttfb", "legato.stream.chunks")


def response(name: str, **more: Any) -> dict[str, Any]:
    """The attributes of a response."""
    return {"gen_ai.response.id": name, **more}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The read endpoint over four judged streams of one engine with samples, and streams that lack something."""
    server = {"legato.stream.vantage": "server"}
    with open_store(tmp_path_factory.mktemp("view") / "store") as opened:
        for number in range(WORLD.streams):
            for vantage in ("client", "server"):
                put(opened, world_stream(WORLD, vantage, number, CLOCK), RECEIVED_NS)
        put(opened, steps(WORLD, WORLD.streams), RECEIVED_NS)
        body = metrics_request({"legato.engine.id": "e", "host.name": "node-1"})
        for second in range(10):
            at_ns = int(WORLD.ends[0]) + second * SECOND_NS
            gauge(body, "hw.gpu.clock.sm", 1980 - second, at_ns, unit="MHz", attributes={"hw.id": "GPU-1"})
            gauge(body, "system.cpu.utilization", 0.25, at_ns, attributes={"cpu.mode": "idle"})
            gauge(body, "system.cpu.utilization", 0.5, at_ns, attributes={"cpu.mode": "idle", "cpu.logical_number": "0"})
        opened.insert("node_samples", received_points(body, tenant="", now_ns=RECEIVED_NS, limits=Limits(retention_days=0)).samples)
        worker(opened).step()
        now = time.time_ns() - 30 * SECOND_NS
        # The builder's holds are in steps of 64 µs.
        held = stream((20,) * 9 + (300,), holds_ms=(0,) * 9 + (290 / 64, 0), attributes=response("alone"), trace_id=ALONE, start_ns=now)
        streams_in(opened, [held], "shop", seed=2)
        apart = [stream(attributes=response("resp_X", **more), trace_id=bytes([17 + n]) * 16) for n, more in enumerate(({}, server))]
        streams_in(opened, apart, "apart", seed=3)
        streams_in(opened, [stream(attributes=response(name), trace_id=AGENT) for name in ("call-1", "call-2")], "agent", seed=4)
        cancel = response("c", **{"legato.stream.outcome": "client_cancel"})
        streams_in(opened, [stream((20,), attributes=cancel, trace_id=CANCELLED, end_ms=900)], "shop", seed=5)
        streams_in(opened, [{**stream(attributes=response("summary")), "drop": NO_TIMELINE}], "shop", seed=6)
        for number, gaps_ms in ((21, (53.0,) * 5), (22, ())):
            standing(opened, number, gaps_ms)
        with reading(opened) as address:
            yield address


@pytest.fixture(scope="module")
def reader(url: str) -> Reader:
    """A reader of the endpoint."""
    return Reader(url)


def view(reader: Reader, identity: str) -> dict[str, Any]:
    """The data of the page as the browser gets it."""
    shown: dict[str, Any] = json.loads(json.dumps(stream_view(reader.rows, identity)))
    return shown


def of_command(url: str, identity: str) -> list[dict[str, Any]]:
    """The output of `legato stream --json`."""
    app = typer.Typer()
    register(app)
    app.command()(lambda: None)
    result = CliRunner().invoke(app, ["stream", identity, "--json"], env={"LEGATO_READ_URL": url, "COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def listed(column: list[int] | int | None, length: int) -> list[int]:
    """A column in full; empty if it is unknown."""
    return [] if column is None else [column] * length if isinstance(column, int) else column


@pytest.mark.parametrize("identity", [trace_id(0).hex(), "alone", CANCELLED.hex(), "call-1", "resp_X", "summary"])
def test_the_timelines_are_those_of_the_command(url: str, reader: Reader, identity: str) -> None:
    """Chunk times, bytes, kinds, holds, stalls and figures, at every vantage."""
    shown, rows = view(reader, identity), {row["span"]: row for row in of_command(url, identity)}
    assert {vantage["span"] for vantage in shown["vantages"]} == set(rows)
    for place, vantage in enumerate(shown["vantages"]):
        row, length = rows[vantage["span"]], len(vantage["dt_us"])
        assert vantage["offset_us"] == (row["offset_us"] or 0)
        assert list(accumulate(vantage["dt_us"])) == [vantage["offset_us"] + at for at in accumulate(row["dt_us"])]
        assert listed(vantage["bytes"], length) == row["chunk_bytes"] and listed(vantage["kind"], length) == row["chunk_kind"]
        assert listed(vantage["hold_us"], length) == [64 * hold for hold in row["chunk_hold_64us"]]
        assert [vantage[name] for name in ("ttft_us", "gap_max_us", "good")] == [row[name] for name in ("ttft_us", "gap_max_us", "good")]
        if vantage["vantage"] == "client" and row["stalls"] is not None:
            own = [stall for stall in shown["stalls"] if stall["vantage"] == place]
            expected = [(vantage["offset_us"] + stall["start_us"], stall["length_us"], stall["open"]) for stall in row["stalls"]]
            assert [(stall["start_us"], stall["gap_us"], stall["open"]) for stall in own] == expected


def test_the_stalls_have_their_verdicts(reader: Reader) -> None:
    """Each as the table has it. The parts are positive and add up; the other streams of the same step are listed."""
    shown = view(reader, trace_id(0).hex())
    judged = reader.rows(
        "SELECT gap_start_us, gap_us, confidence, error_us, excluded FROM verdicts FINAL "
        f"WHERE lower(hex(trace_id)) = '{trace_id(0).hex()}' ORDER BY gap_start_us"
    )
    offset = next(vantage["offset_us"] for vantage in shown["vantages"] if vantage["vantage"] == "client")
    assert [stall["cause"] for stall in shown["stalls"]] == ["host", "scheduling"]
    for stall, verdict in zip(shown["stalls"], judged, strict=True):
        assert stall["start_us"] == offset + int(verdict["gap_start_us"]) and stall["end_us"] - stall["start_us"] == int(verdict["gap_us"])
        assert sum(stall["parts_us"].values()) - stall["caught_up_us"] == pytest.approx(int(verdict["gap_us"]), abs=1)
        assert all(us >= 0 for us in stall["parts_us"].values()) and max(stall["parts_us"], key=stall["parts_us"].get) == stall["cause"]
        assert (stall["confidence"], stall["error_us"]) == (verdict["confidence"], verdict["error_us"])
        assert {each["cause"]: each["reason"] for each in stall["excluded"]} == verdict["excluded"]
        assert any(words.startswith("The server sent the next chunk after") for words in stall["evidence"])
        assert sorted(each["trace"] for each in stall["same_step"]) == [trace_id(number).hex() for number in (1, 2, 3)]
        assert not stall["same_step_more"]


def test_the_engine_is_in_the_time_of_the_stream(reader: Reader) -> None:
    """All steps with their load; the root-cause step ends within 1 ms of the end of its stall at the server."""
    shown = view(reader, response_id(0))
    found, (row,) = shown["engine"]["steps"], reader.rows("SELECT count() AS steps, sum(prefill_tokens) AS tokens FROM engine_steps FINAL")
    assert (found["count"], sum(found["prefill_tokens"])) == (int(row["steps"]), int(row["tokens"])) == (WORLD.steps, 2_000)
    assert shown["engine"]["id"] == "e" and shown["engine"]["reason"] == "" and found["kv_used_ppm"] is None
    assert max(found["late_us"]) < 1_000 and min(found["late_us"]) == 0
    for stall, step in zip(shown["stalls"], (200, 300), strict=True):
        place = found["step"].index(step)
        assert stall["culprit_step"] == step and found["duration_us"][place] == pytest.approx(WORLD.took[step] / 1_000, abs=1)
        assert found["start_us"][place] + found["duration_us"][place] == pytest.approx(stall["end_us"], abs=2_000)


def test_samples_and_the_counterfactual(reader: Reader) -> None:
    """The clock of the engine's GPU, the busy share of all CPUs of its host, and the rows of `replays`."""
    shown = view(reader, trace_id(0).hex())
    (gpu,), (cpu,) = shown["gpu_clock"]["series"], shown["host_cpu"]["series"]
    assert gpu["name"] == "GPU-1" and gpu["value"] == [1980 - second for second in range(10)]
    assert cpu["name"] == "node-1" and cpu["value"] == [0.75] * 10 and len(cpu["at_us"]) == 10
    rows = reader.rows(
        f"SELECT cause, stalls, stalls_min, stalls_max FROM replays FINAL WHERE lower(hex(trace_id)) = '{trace_id(0).hex()}'"
    )
    expected = {row["cause"]: tuple(int(row[name]) for name in ("stalls", "stalls_min", "stalls_max")) for row in rows}
    assert {row["cause"]: (row["stalls"], row["stalls_min"], row["stalls_max"]) for row in shown["but_for"]} == expected
    assert set(expected) >= {"host", "scheduling"}


def test_what_is_absent_has_a_reason(reader: Reader) -> None:
    """A stream without an engine, without a timeline, with holds alone, and with an open gap that has no verdict."""
    cancelled = view(reader, "c")
    assert cancelled["engine"]["steps"] is None and "names none" in cancelled["engine"]["reason"] and cancelled["gpu_clock"]["reason"]
    (stall,) = cancelled["stalls"]
    assert (stall["open"], stall["cause"], stall["gap_us"], stall["parts_us"]) == (True, "", 900_000, {})
    (summary,) = view(reader, "summary")["vantages"]
    assert summary["timeline"] == "unknown" and summary["dt_us"] == [] and summary["bytes"] is None and summary["kind"] is None
    (alone,) = view(reader, "alone")["vantages"]
    assert alone["kind"] == 1 and alone["bytes"] == 6 and max(alone["hold_us"]) == pytest.approx(290_000, abs=64)


def test_the_silence_of_a_running_stream_is_its_open_stall(reader: Reader) -> None:
    """The axis ends with it, not with the newest snapshot; before the first output it is no stall."""
    shown = view(reader, "15" * 16)
    (stall,) = shown["stalls"]
    assert (stall["open"], stall["start_us"]) == (True, 1_265_000) and stall["gap_us"] >= 299_735_000
    assert shown["duration_us"] == stall["end_us"] and shown["vantages"][0]["duration_us"] < 2_000_000
    waiting = view(reader, "16" * 16)
    assert waiting["stalls"] == [] and waiting["duration_us"] >= 300_000_000


def test_an_expired_timeline_leaves_the_verdicts(reader: Reader) -> None:
    """Timelines may be deleted before their streams: the page has the judged stalls, and does not say that there are no others."""
    whole = view(reader, trace_id(0).hex())

    def run(sql: str, parameters: Any) -> list[dict[str, Any]]:
        columns = ("dt_us", "chunk_kind", "chunk_bytes", "chunk_tokens", "chunk_hold_64us")
        return [{**row, **{name: [] for name in columns if name in row}} for row in reader.rows(sql, parameters)]

    expired = stream_view(run, trace_id(0).hex())
    assert {vantage["timeline"] for vantage in whole["vantages"]} == {"stored"} and whole["gaps_known"]
    assert {vantage["timeline"] for vantage in expired["vantages"]} == {"expired"} and not expired["gaps_known"]
    assert expired["stalls"] == [stall for stall in whole["stalls"] if stall["cause"]] != []


def test_identities(reader: Reader) -> None:
    """A trace id, its first digits, a span id and a response id find the stream; an ambiguous or unknown one is an error."""
    full = view(reader, trace_id(0).hex())
    assert full["one_clock"] and full["vantages"][full["felt"]]["vantage"] == "client"
    for identity in (trace_id(0).hex()[:8], f" {response_id(0)} ", full["vantages"][0]["span"]):
        assert view(reader, identity)["vantages"] == full["vantages"]
    assert [vantage["response_id"] for vantage in view(reader, "call-2")["vantages"]] == ["call-2"]
    assert len(view(reader, AGENT.hex())["vantages"]) == 2
    apart = view(reader, "resp_X")
    assert not apart["one_clock"] and [vantage["offset_us"] for vantage in apart["vantages"]] == [0, 0]
    with pytest.raises(NoSuchStream, match="2 traces start with aaaaaaaa"):
        view(reader, "aaaaaaaa")
    with pytest.raises(NoSuchStream, match="no stream has the id 'x'"):
        view(reader, "x")
