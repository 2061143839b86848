"""Engines as evidence: which one ran a request, its steps over a restart, and the offset of its clock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.builders.judging import RECEIVED_NS, WORLD, put_all, verdicts, worker
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, response_id, steps, stream, trace_id
from legato_gpu_agent.agent.otlp_spans import Engine, steps_request
from legato_gpu_agent.plugin.model import FinishedRequest, Step
from legato_ingest.attribution.model.vantage import Vantage
from legato_ingest.storage import Store


def test_a_restarted_engine_counts_its_steps_from_one_again(store: Store) -> None:
    """Two runs within a minute: each finished request is matched with the step at its time, so the clock offset is right."""
    put_all(store)
    again = World(seed=2)
    shift = int(WORLD.ends[-1]) - int(again.ends[0]) + 5_000 * MS
    later = steps(replace(again, offset_ns=shift), 0, epoch_ns=9)
    put(store, later, RECEIVED_NS)
    worker(store).step()
    assert verdicts(store) == [("host", "likely", [], 200)]


def test_the_engine_that_finished_a_request_is_its_engine(store: Store) -> None:
    """The server has one id for several engines; the record of the finished request has the right one."""
    put_all(store)
    put(store, steps(World(seed=3), 0, engine_id="e/1"), RECEIVED_NS)
    worker(store).step()
    ((engine,),) = store.select("SELECT engine_id FROM verdicts FINAL")
    assert engine == "e"
    store.command("TRUNCATE TABLE engine_requests")
    put(store, steps_request(Engine("e/1", 5), [Step(1, RECEIVED_NS)], [FinishedRequest(1, "chatcmpl-1")]), RECEIVED_NS)
    worker(store).again(0)
    ((engine,),) = store.select("SELECT engine_id FROM verdicts FINAL")
    assert engine == "e/1"


class _Waited(World):
    """A world in which the last token of stream 0 waited before it was sent."""

    def server(self, stream: int) -> Vantage:
        seen = super().server(stream)
        if stream == 0:
            seen.times_ns[-1] += 45 * MS
        return seen


def test_one_late_send_moves_no_clock(store: Store) -> None:
    """A run may judge a single stream; the offset of the records' clock comes from all requests that ended around it."""
    world = _Waited(prefill={200: 3000})
    put(store, steps(world, 4), RECEIVED_NS)
    for number in range(4):
        put(store, stream(world, "server", number), RECEIVED_NS)
    put(store, stream(world, "client"), RECEIVED_NS)
    worker(store).step()
    assert {(row[0], row[3]) for row in verdicts(store)} == {("scheduling", 200)}


def test_no_verdict_depends_on_another_tenant(store: Store) -> None:
    """A stream without a server takes the only engine of its tenant at the time of the tenant's finished requests.

    The requests of another tenant are finished in the same batch, an hour before and after: at a time when the tenant had two engines.
    Some have the tenant's response id.
    """
    put(store, stream(WORLD, "client"), RECEIVED_NS, "a")
    put(store, stream(WORLD, "client", 1, outcome="client_cancel"), RECEIVED_NS, "a")
    put(store, steps(WORLD), RECEIVED_NS, "a")
    store.command("DELETE FROM engine_requests WHERE response_id = 'chatcmpl-2'")
    worker(store).step()
    columns = "tenant, cause, confidence, parts, missing, engine_id, gap_start_us"
    alone = store.select(f"SELECT {columns} FROM verdicts FINAL ORDER BY ALL")
    assert [row[5] for row in alone] == ["e", "e"]
    earlier = int(WORLD.ends[0]) - 3_600 * 1_000 * MS
    put(store, steps_request(Engine("old", 5), [Step(1, earlier + 1_000 * MS)]), RECEIVED_NS, "a")
    for at_ns, response in ((earlier, "chatcmpl-1"), (int(WORLD.ends[-1]) + 3_600 * 1_000 * MS, "chatcmpl-2")):
        put(store, steps_request(Engine("e", 6), [Step(1, at_ns)], [FinishedRequest(1, response)]), RECEIVED_NS, "b")
    put(store, stream(WORLD, "client"), RECEIVED_NS, "b")
    put(store, stream(WORLD, "client", 1), RECEIVED_NS, "b")
    worker(store).again(0)
    assert store.select(f"SELECT {columns} FROM verdicts FINAL WHERE tenant = 'a' ORDER BY ALL") == alone


@pytest.mark.parametrize("names", [("a", "e"), ("z", "e")])
@pytest.mark.parametrize("is_first", [False, True])
def test_of_two_engines_that_finish_a_request_the_later_one_made_it(store: Store, names: tuple[str, str], is_first: bool) -> None:
    """With separate engines for prompts and for tokens both finish it. Neither the names nor the order of the rows count."""
    world = World(slow={200: 600 * MS})
    prompts = World(seed=5, streams=1, prefill={i: 2_000 for i in range(3, 160, 3)}, steps=160, offset_ns=-11_000 * MS)
    at = int(np.searchsorted(prompts.recorded, world.ends[0]))
    assert prompts.recorded[at] < world.recorded[-1] - 1_000 * MS
    ends = [FinishedRequest(at, response_id(0), output_tokens=1), FinishedRequest(world.steps - 1, response_id(0), output_tokens=400)]
    bodies = [steps(made, engine_id=name, ended=[end]) for made, name, end in zip((prompts, world), names, ends, strict=True)]
    for body in bodies if is_first else reversed(bodies):
        put(store, body, RECEIVED_NS)
    put(store, stream(world, "server"), RECEIVED_NS)
    put(store, stream(world, "client"), RECEIVED_NS)
    worker(store).step()
    found = store.select("SELECT engine_id, toString(cause), step_first FROM verdicts FINAL")
    assert {(engine, cause) for engine, cause, _ in found} == {(names[1], "host")} and {step for *_, step in found} == {200}


@pytest.mark.parametrize(("provider", "engine"), [("openai", "e"), ("anthropic", "")])
def test_a_stream_of_another_provider_has_no_engine(store: Store, provider: str, engine: str) -> None:
    """A request that no engine finished was served by the only one if it was sent where that one's requests were sent."""
    world = World(prefill={200: 3_000})
    put(store, steps(world), RECEIVED_NS)
    put(store, stream(world, "client"), RECEIVED_NS)
    put(store, stream(world, "client", 1, outcome="client_cancel", provider=provider), RECEIVED_NS)
    worker(store).step()
    rows = store.select("SELECT DISTINCT lower(hex(trace_id)) AS trace, engine_id FROM verdicts FINAL ORDER BY trace")
    assert [tuple(row) for row in rows] == [(trace_id(0).hex(), "e"), (trace_id(1).hex(), engine)]


@pytest.mark.parametrize(
    ("preemptions", "preempted", "expected"),
    [
        (1, {215: 1}, ("kv_pressure", "strong")),
        (0, {215: 1}, ("generation", "likely")),
        (None, {215: 1}, ("kv_pressure", "likely")),
        (None, {}, ("generation", "likely")),
        (0, None, ("kv_pressure", "likely")),
    ],
    ids=["preempted", "never preempted", "not finished", "nothing resumed", "not reported"],
)
def test_the_report_of_the_engine_decides_whether_a_request_was_preempted(
    store: Store, preemptions: int | None, preempted: dict[int, int] | None, expected: tuple[str, str]
) -> None:
    """Another request is preempted, or aborted, while this one gets no token: it was not scheduled, or its text was held back.

    An abandoned request has no record of its end; the clock's offset is known from another one.
    """
    world = World(preempted=(200, 215))
    ended = [FinishedRequest(world.steps - 1, response_id(1))]
    if preemptions is not None:
        ended.append(FinishedRequest(world.steps - 1, response_id(0), preemptions=preemptions))
    put(store, steps(world, preempted=preempted, ended=ended), RECEIVED_NS)
    put(store, stream(world, "server"), RECEIVED_NS)
    put(store, stream(world, "server", 1), RECEIVED_NS)
    put(store, stream(world, "client"), RECEIVED_NS)
    worker(store).step()
    rows = store.select("SELECT toString(cause), confidence, parts FROM verdicts FINAL WHERE vantage = 'client'")
    ((cause, confidence, parts),) = rows
    assert (cause, confidence) == expected and (cause == "kv_pressure" or parts["generation"] > 200 * MS), parts


def _put_streams(store: Store, world: World, number: int) -> None:
    for vantage in ("server", "client"):
        put(store, stream(world, vantage, number), RECEIVED_NS)


def _causes(store: Store) -> dict[str, tuple[str, str, int | None]]:
    """Cause, confidence and first step of the only stall of each stream, by trace id."""
    sql = "SELECT lower(hex(trace_id)), toString(cause), confidence, step_first FROM verdicts FINAL WHERE cause != 'base'"
    rows = store.select(sql)
    found = {trace: tuple(rest) for trace, *rest in rows}
    assert len(found) == len(rows)
    return found


def test_nodes_with_one_engine_id_are_apart(store: Store) -> None:
    """Each stream is judged by the steps of the process that finished its request; a stream of which that is unknown, by none."""
    nodes = World(prefill={200: 3_000}), World(seed=3, slow={150: 600 * MS}, offset_ns=2_000 * MS)
    for number, world in enumerate(nodes):
        put(store, steps(world, epoch_ns=5 + number, ended=[FinishedRequest(world.steps - 1, response_id(number))]), RECEIVED_NS)
        _put_streams(store, world, number)
    _put_streams(store, nodes[1], 2)
    worker(store).step()
    assert _causes(store) == {
        trace_id(0).hex(): ("scheduling", "likely", 200),
        trace_id(1).hex(): ("host", "likely", 150),
        trace_id(2).hex(): ("generation", "likely", None),
    }


@pytest.mark.parametrize("steps_of_last", [400, 60])
def test_any_number_of_nodes_with_one_engine_id_are_apart(store: Store, steps_of_last: int) -> None:
    """Steps of 10 ms of so many nodes are near each other by chance, and a node that is nearly idle has few."""
    nodes = [World(seed=number, speed=2, prefill={200: 6_000}, offset_ns=number * 137 * MS) for number in range(5)]
    nodes.append(World(seed=9, speed=2, steps=steps_of_last, offset_ns=1_000 * MS))
    for number, world in enumerate(nodes):
        put(store, steps(world, epoch_ns=5 + number, ended=[FinishedRequest(world.steps - 1, response_id(number))]), RECEIVED_NS)
        _put_streams(store, world, number)
    worker(store).step()
    assert _causes(store) == {trace_id(number).hex(): ("scheduling", "likely", 200) for number in range(5)}


@pytest.mark.parametrize("late_max_us", [150, 4_000])
def test_two_api_servers_record_the_steps_of_one_engine(store: Store, late_max_us: int) -> None:
    """The second one starts in the same minute and reports no state of the scheduler. Its steps are no other engine's."""
    world = World(prefill={200: 3_000})
    put(store, steps(world), RECEIVED_NS)
    late_ns = 1000 * np.random.default_rng(5).integers(100, late_max_us, world.steps)
    recorded_ns = np.maximum.accumulate(world.ends + late_ns).tolist()
    seen = [Step(i, recorded_ns[i], int(world.took[i]) // 1000) for i in range(1, world.steps)]
    put(store, steps_request(Engine("e", 6), seen, [FinishedRequest(world.steps - 1, response_id(1))]), RECEIVED_NS)
    for number in (0, 1):
        _put_streams(store, world, number)
    worker(store).step()
    assert _causes(store) == {trace_id(number).hex(): ("scheduling", "likely", 200) for number in (0, 1)}


@pytest.mark.parametrize(
    ("rank_before_s", "causes"),
    [(0, {"generation"}), (None, {"scheduling"}), (3_600, {"scheduling"})],
    ids=["two ranks", "no ranks", "a rank an hour ago"],
)
def test_a_cancelled_stream_may_be_of_any_rank(store: Store, rank_before_s: int | None, causes: set[str]) -> None:
    """The server's id is that of its first rank, too. Without a record of the request the steps of the first rank are no evidence.

    A rank that was removed before the stream did not serve it.
    """
    world = World(prefill={200: 3_000})
    put(store, steps(world, 4), RECEIVED_NS)
    store.command("DELETE FROM engine_requests WHERE response_id = 'chatcmpl-1'")
    if rank_before_s is not None:
        rank = World(seed=3, offset_ns=-rank_before_s * 1_000 * MS)
        put(store, steps(rank, 0, engine_id="e/1", epoch_ns=3), RECEIVED_NS)
    _put_streams(store, world, 1)
    for vantage in ("server", "client"):
        put(store, stream(world, vantage, outcome="client_cancel"), RECEIVED_NS)
    worker(store).step()
    found = _causes(store)
    assert {found[trace_id(0).hex()][0]} == causes and found[trace_id(1).hex()][:2] == ("scheduling", "likely")
    ((engine,),) = store.select("SELECT DISTINCT engine_id FROM verdicts FINAL")
    assert engine == "e"


@pytest.mark.parametrize(("outcome", "engine"), [("client_cancel", "e"), ("complete", "")])
def test_a_complete_stream_without_a_record_is_of_another_engine(store: Store, outcome: str, engine: str) -> None:
    """Behind one address are two engines, and one reports nothing: only an abandoned request is in no engine's records."""
    world = World(prefill={200: 3_000})
    put(store, steps(world), RECEIVED_NS)
    put(store, stream(world, "client"), RECEIVED_NS)
    put(store, stream(world, "client", 1, outcome=outcome), RECEIVED_NS)
    worker(store).step()
    rows = store.select("SELECT DISTINCT lower(hex(trace_id)) AS trace, engine_id FROM verdicts FINAL ORDER BY trace")
    assert [tuple(row) for row in rows] == [(trace_id(0).hex(), "e"), (trace_id(1).hex(), engine)]
