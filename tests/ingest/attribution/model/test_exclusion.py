"""What pages rule out and name where no step was recorded: only with scrapes all the while, and never more than they say."""

from __future__ import annotations

import pathlib
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.batches import received_points
from helpers.builders.points import metrics_request, total
from helpers.builders.world import MS, World
from helpers.repo.repository import ROOT
from legato_gpu_agent.agent.otlp_metrics import Sample, metrics_of
from legato_gpu_agent.collectors.exposition import Page
from legato_gpu_agent.collectors.measurement import Reading
from legato_gpu_agent.engines.registry import ENGINES
from legato_ingest.attribution.load.scraped_metrics import Counter, Scraped, scraped_of
from legato_ingest.attribution.load.streams import Stream
from legato_ingest.attribution.model.charge import CAUSES, Gaps, Verdicts, judge
from legato_ingest.attribution.model.exclusion import by_exclusion, excluded_by, still
from legato_ingest.attribution.model.gaps import gaps_of
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store

PAGES = ROOT / "tests" / "gpu_agent" / "data" / "pages"
S = 1000 * MS
START = 10**15
PROMPTS, PREEMPTIONS, WAITED = "legato.engine.tokens.prompt", "legato.engine.preemptions", "legato.process.run_queue.wait_time"
# One gap of 400 ms, 100 s after the first scrape; 200 scrapes, one a second.
GAP = (START + 100 * S + 300 * MS, START + 100 * S + 700 * MS)
SEEN = START + np.arange(200) * S


def pages(
    moved: dict[str, float] | None = None,
    at_s: float = 101,
    longest_ms: int = 450,
    waited_s: float = 0.0,
    stolen_s: float = 0.0,
    ranks: bool = False,
) -> Scraped:
    """Scrapes in which these counters moved by so much in the given second; the longest time between tokens then; what was waited in it,
    and what was stolen of eight CPUs.
    """
    counters = {name: Counter(SEEN, np.where(SEEN >= START + at_s * S, more, 0.0)) for name, more in (moved or {}).items()}
    for name in (PROMPTS, PREEMPTIONS):
        counters.setdefault(name, Counter(SEEN, np.zeros(len(SEEN))))
    counters[WAITED] = Counter(SEEN, np.where(SEEN >= START + at_s * S, waited_s, 0.0))
    counters["stolen"] = Counter(SEEN, np.where(SEEN >= START + at_s * S, stolen_s, 0.0))
    counters["system.cpu.time"] = Counter(SEEN, np.arange(0.0, 8.0 * len(SEEN), 8.0))
    long_at = np.array([START + at_s * S], np.int64)
    return Scraped(counters, SEEN, long_at, np.array([longest_ms * MS], np.int64), True, frozenset({"boot"}), ranks)


def named(scraped: Scraped, same_clock: bool = True, gap: tuple[int, int] = GAP) -> tuple[str, dict[str, str]]:
    """What a gap that the server waited for is called, and what is out of the question."""
    start, end = np.array([gap[0]]), np.array([gap[1]])
    excluded, moved = excluded_by(scraped, start, end, np.array([same_clock]))
    gaps, verdicts = waited_for()
    verdicts = by_exclusion(gaps, verdicts, excluded, moved)
    assert (verdicts.parts.sum(axis=1) == gaps.end_ns - gaps.start_ns).all()
    return CAUSES[verdicts.cause[0]], excluded[0]


def waited_for() -> tuple[Gaps, Verdicts]:
    """One gap that the server saw, without its engine's steps."""
    world = World(slow={200: 400 * MS})
    gaps = gaps_of(world.client(0), world.server(0), 0, 300 * MS)
    assert len(gaps.start_ns) == 1
    verdicts = judge(gaps, None)
    assert CAUSES[verdicts.cause[0]] == "generation"
    return gaps, verdicts


def test_what_the_engine_never_made_was_the_front_end() -> None:
    """Its own histogram has nothing half as long around the gap: no cause of its core is left."""
    cause, excluded = named(pages({PROMPTS: 300, PREEMPTIONS: 1}, longest_ms=200))
    assert cause == "front_end" and set(excluded) == {"scheduling", "kv_pressure", "gpu_clock", "host"}
    assert named(pages({PROMPTS: 300, PREEMPTIONS: 1}, longest_ms=201))[0] == "generation"


@pytest.mark.parametrize(
    ("scraped", "cause"),
    [
        (pages({PROMPTS: 300}), "scheduling"),
        (pages({PREEMPTIONS: 2}), "kv_pressure"),
        (pages({PREEMPTIONS: 2, PROMPTS: 300}), "generation"),
        (pages({}), "generation"),
        (pages({PROMPTS: 300}, waited_s=0.9), "host"),
        (pages({PROMPTS: 300}, stolen_s=8 * 0.9), "host"),
        (pages({PROMPTS: 300}, stolen_s=8 * 0.5), "generation"),
        (pages({PROMPTS: 300}, stolen_s=0.9), "scheduling"),
        # What moved in one of several ranks says nothing of a stream, what none of them made does.
        (pages({PROMPTS: 300}, ranks=True), "generation"),
        (pages({PREEMPTIONS: 2}, ranks=True), "generation"),
        (pages({PROMPTS: 300}, waited_s=0.9, ranks=True), "generation"),
        (pages({PREEMPTIONS: 2}, longest_ms=200, ranks=True), "front_end"),
        (pages({PROMPTS: 300}, waited_s=0.3), "scheduling"),
        # Between a time that the engine made and one that it did not, nothing is named.
        (pages({PROMPTS: 300}, longest_ms=300), "generation"),
    ],
)
def test_what_is_left_is_named(scraped: Scraped, cause: str) -> None:
    """A prompt where no preemption was counted, a preemption where no prompt was, the host where threads waited as they seldom do."""
    assert named(scraped)[0] == cause


def test_a_prompt_is_counted_after_its_last_piece() -> None:
    """Three seconds later it may still have been the cause; a minute later only where clocks may disagree."""
    assert "scheduling" not in named(pages({PROMPTS: 300}, at_s=103))[1]
    assert "scheduling" in named(pages({PROMPTS: 300}, at_s=130))[1]
    assert "scheduling" not in named(pages({PROMPTS: 300}, at_s=130), same_clock=False)[1]


def test_holes_rule_nothing_out() -> None:
    """No scrape for half a minute, none before, none after, no page at all: nothing is said."""
    whole = pages({}, longest_ms=10)
    holed = np.flatnonzero((START + 90 * S > SEEN) | (START + 125 * S < SEEN))
    for kept in (holed, np.arange(0, 99), np.arange(101, 200), np.arange(0)):
        counters = {name: Counter(each.times_ns[kept], each.values[kept]) for name, each in whole.counters.items()}
        cut = replace(whole, counters=counters, seen_ns=SEEN[kept])
        assert named(cut) == ("generation", {})
    assert named(replace(whole, counters={}, intervals=False)) == ("generation", {})


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(st.integers(0, 100), unique=True), values=st.lists(st.integers(0, 3)), low=st.integers(0, 100), length=st.integers(0, 50)
)
def test_still_is_what_a_loop_would_say(times: list[int], values: list[int], low: int, length: int) -> None:
    """Against plain Python over the scrapes from the one before the stretch to the one after it."""
    count = min(len(times), len(values))
    at = sorted(times[:count])
    counter = Counter(np.array(at, np.int64) * S, np.array(values[:count], float))
    said = bool(still(counter, np.array([low * S]), np.array([(low + length) * S]))[0])
    before, after = [i for i in range(count) if at[i] <= low], [i for i in range(count) if at[i] >= low + length]
    expected = count > 1 and bool(before) and bool(after)
    if expected:
        inside = range(before[-1], max(before[-1], after[0]) + 1)
        expected = len({values[i] for i in inside}) == 1 and all(at[i + 1] - at[i] <= 30 for i in inside[:-1])
    assert said == expected


def sampled(store: Store, engine_id: str, kind: str, names: tuple[str, str], boot: str) -> None:
    """Two pages of an engine, a second apart, as the agent sends them."""
    page, samples = Page(ENGINES[kind], engine_id), []
    for second, name in enumerate(names):
        now_ns = START + second * S
        up = Reading("legato.engine.up", "1", 1.0, (("legato.boot.id", boot), ("legato.engine.id", engine_id)))
        samples += [Sample(now_ns, each) for each in [up, *page.read((PAGES / name).read_bytes(), now_ns)]]
    rows = received_points(metrics_of("node", samples), tenant="", now_ns=START, limits=Limits(retention_days=0))
    store.insert("node_samples", rows.samples)


def test_pages_are_read_as_the_agent_sent_them(store: Store) -> None:
    """Counters, hosts, and times between tokens of engines whose observations are of a step; others' are not taken for that."""
    sampled(store, "vllm:1", "vllm", ("vllm_0.32.txt", "vllm_0.32_later.txt"), "boot-a")
    sampled(store, "sglang:1", "sglang", ("sglang_0.5.txt", "sglang_0.5_later.txt"), "boot-b")
    nothing = waited_for()[0]
    client = World().client(0)
    streams = [Stream("", START, bytes(16), bytes(8), client, None, engine, "", "") for engine in ("vllm:1", "sglang:1", "other:1")]
    found = scraped_of(store, streams)
    assert set(found) == {("", "vllm:1"), ("", "sglang:1")} and len(nothing.start_ns) == 1
    vllm, sglang = found["", "vllm:1"], found["", "sglang:1"]
    assert vllm.boots == {"boot-a"} and vllm.seen_ns.tolist() == [START, START + S]
    assert vllm.counters[PROMPTS].values.tolist() == [0, 300] and vllm.counters[PREEMPTIONS].values.tolist() == [0, 1]
    later = (PAGES / "vllm_0.32_later.txt").read_text(encoding="utf-8")
    assert vllm.intervals and vllm.longest_ns.tolist() == [longest(later)]
    assert not sglang.intervals and sglang.counters[PREEMPTIONS].values.tolist() == [0, 1]
    assert {each.name for each in fields(Scraped)} >= {"boots", "intervals"}


RANKED = b'engine="0"'


def told(store: Store, engine_id: str, texts: tuple[bytes, ...]) -> None:
    """Pages a second apart, as the agent sends them, and the CPUs of its host."""
    page, samples = Page(ENGINES["vllm"], engine_id), []
    for second, text in enumerate(texts):
        now_ns = START + second * S
        up = Reading("legato.engine.up", "1", 1.0, (("legato.boot.id", "boot"), ("legato.engine.id", engine_id)))
        cpu = [Reading("system.cpu.time", "s", second * part, (("cpu.mode", mode),), START) for mode, part in (("idle", 6), ("steal", 2))]
        samples += [Sample(now_ns, each) for each in [up, *cpu, *page.read(text, now_ns)]]
    rows = received_points(metrics_of("node", samples), tenant="", now_ns=START, limits=Limits(retention_days=0))
    store.insert("node_samples", rows.samples)


def of(store: Store, engine_id: str) -> Scraped:
    """What is known of an engine that one stream names."""
    return scraped_of(store, [Stream("", START, bytes(16), bytes(8), World().client(0), None, engine_id, "", "")])["", engine_id]


def test_ranks_behind_one_server_are_added_up(store: Store) -> None:
    """The server's stream does not say which rank made it: a preemption in any of them is one, and the longest time is of all."""
    before, after = ((PAGES / name).read_bytes() for name in ("vllm_0.32.txt", "vllm_0.32_later.txt"))
    both = tuple(text.replace(RANKED, b'engine="1"') + b"".join(_lines(before)) for text in (before, after))
    told(store, "vllm:1", both)
    found = of(store, "vllm:1")
    assert found.ranks and found.counters[PREEMPTIONS].values.tolist() == [0, 1]
    assert found.longest_ns.tolist() == [longest(after.decode())]
    # A page that tells one rank alone, which is not the first.
    told(store, "vllm:2", tuple(text.replace(RANKED, b'engine="3"') for text in (before, after)))
    alone = of(store, "vllm:2")
    assert not alone.ranks and alone.counters[PREEMPTIONS].values.tolist() == [0, 1]
    # And one whose id begins alike is another engine.
    told(store, "vllm:11", (before, after))
    assert of(store, "vllm:1").counters[PREEMPTIONS].values.tolist() == [0, 1] and not of(store, "vllm:11").ranks


def counted(store: Store, name: str, values: dict[int, float], engine_id: str = "e", **attributes: str) -> None:
    """A counter at these seconds, as somebody else's Collector sends it."""
    body = metrics_request({"legato.engine.id": engine_id, "host.name": "node"})
    for second, value in values.items():
        total(body, name, value, START + second * S, attributes={key.replace("__", "."): text for key, text in attributes.items()})
    store.insert("node_samples", received_points(body, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)


FOREIGN = "vllm:num_preemptions_total"


def test_ranks_that_a_collector_scraped_are_ranks(store: Store) -> None:
    """Under their own names and one id: what one of them counts is told, and that they are several."""
    for rank, after in (("0", 7), ("1", 8)):
        counted(store, FOREIGN, {0: 7, 1: 7, 2: after}, engine=rank)
    found = of(store, "e")
    assert found.ranks and found.counters[PREEMPTIONS].values.tolist() == [0, 0, 1]


def test_a_rank_that_begins_anew_hides_nothing(store: Store) -> None:
    """One counts a preemption in the same second in which the other goes back to zero; and one that appears has counted what it has."""
    counted(store, FOREIGN, {0: 0, 1: 1, 2: 1}, engine="0")
    counted(store, FOREIGN, {0: 1, 1: 0, 2: 0}, engine="1")
    counted(store, FOREIGN, {2: 4}, engine="2")
    assert of(store, "e").counters[PREEMPTIONS].values.tolist() == [0, 2, 6]


def test_while_one_rank_is_not_scraped_nothing_is_known(store: Store) -> None:
    """Its preemption would be seen when it is there again, which may be long after the gap."""
    counted(store, FOREIGN, {second: 0 for second in range(120)}, engine="0")
    counted(store, FOREIGN, {second: 0 for second in range(80) if not 20 < second < 60}, engine="1")
    found = of(store, "e").counters[PREEMPTIONS]
    at = (found.times_ns - START) // S
    assert at.tolist() == [*range(21), *range(60, 80)]
    low = np.array([10, 30, 70, 90]) * S + START
    assert still(found, low, low + 5 * S).tolist() == [True, False, True, False]


@pytest.mark.parametrize("engine_id", ["team/llama", "vllm:1", "vllm:1/1"])
def test_ids_may_have_slashes_and_ranks_may_be_asked_for(store: Store, engine_id: str) -> None:
    """A number behind the last slash is a rank, which is told of by itself and with its server, whoever else is asked for."""
    for rank, after in (("", 7), ("/1", 8), ("/canary", 9)):
        counted(store, PREEMPTIONS, {0: 7, 1: after}, engine_id + rank)
    streams = [Stream("", START, bytes(16), bytes(8), World().client(0), None, engine_id + rank, "", "") for rank in ("", "/1")]
    for asked in (streams, streams[:1]):
        found = scraped_of(store, asked)["", engine_id]
        assert found.ranks and found.counters[PREEMPTIONS].values.tolist() == [0, 1]
    assert not scraped_of(store, streams)["", engine_id + "/1"].ranks


def test_another_s_time_of_cpus_is_left_out(store: Store) -> None:
    """A Collector's hostmetrics beside the agent, or alone: by CPU, by another name of the mode, or without any that was stolen."""
    up = metrics_of("node", [Sample(START, Reading("legato.engine.up", "1", 1.0, (("legato.engine.id", "e"),)))])
    store.insert("node_samples", received_points(up, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)
    counted(store, PREEMPTIONS, {0: 0})
    counted(store, "system.cpu.time", {0: 5, 1: 6}, "", state="idle", cpu="cpu0")
    counted(store, "system.cpu.time", {0: 5, 1: 6}, "", cpu__mode="steal", cpu__logical_number="0")
    assert "stolen" not in of(store, "e").counters
    counted(store, "system.cpu.time", {0: 9, 1: 10}, "", cpu__mode="idle")
    assert "stolen" not in of(store, "e").counters
    counted(store, "system.cpu.time", {0: 1, 1: 2}, "", cpu__mode="steal")
    found = of(store, "e").counters
    assert found["stolen"].values.tolist() == [1, 2] and found["system.cpu.time"].values.tolist() == [10, 12]


def _lines(page: bytes) -> list[bytes]:
    """The first rank's lines."""
    return [line + b"\n" for line in page.splitlines() if RANKED in line]


def test_the_time_of_the_host_s_cpus_is_read(store: Store) -> None:
    """All of it, and what was stolen; of an engine whose page was read on two hosts nothing."""
    before, after = ((PAGES / name).read_bytes() for name in ("vllm_0.32.txt", "vllm_0.32_later.txt"))
    told(store, "vllm:1", (before, after))
    found = of(store, "vllm:1")
    assert found.counters["stolen"].values.tolist() == [0, 2] and found.counters["system.cpu.time"].values.tolist() == [0, 8]
    again = metrics_of("other", [Sample(START, Reading("legato.engine.up", "1", 1.0, (("legato.engine.id", "vllm:1"),)))])
    store.insert("node_samples", received_points(again, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)
    assert "stolen" not in of(store, "vllm:1").counters


def longest(later: str) -> int:
    """The upper bound (ns) of the last bucket of times between tokens that grew between the two pages, by plain Python."""
    earlier = (pathlib.Path(PAGES) / "vllm_0.32.txt").read_text(encoding="utf-8")

    def buckets(text: str) -> list[tuple[float, float]]:
        lines = [line for line in text.splitlines() if line.startswith("vllm:inter_token_latency_seconds_bucket")]
        return [(float(line.split('le="')[1].split('"')[0]), float(line.rpartition(" ")[2])) for line in lines]

    grown = [(bound, after - before) for (bound, after), (_, before) in zip(buckets(later), buckets(earlier), strict=True)]
    steps = [(bound, more - below) for (bound, more), below in zip(grown, [0.0, *[more for _, more in grown]], strict=False)]
    return int(1e9 * max(bound for bound, count in steps if count > 0))
