"""Scraped metrics read from a store, as the agent and Collectors send them, with the series of several ranks added up."""

from __future__ import annotations

import pathlib
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.batches import received_points
from helpers.builders.points import metrics_request, total
from helpers.builders.world import MS, World
from helpers.platform.examples import examples
from helpers.repo.repository import ROOT
from legato_gpu_agent.agent.otlp_metrics import metrics_request as agent_request
from legato_gpu_agent.collectors.exposition import ExpositionReader
from legato_gpu_agent.collectors.measurement import Measurement
from legato_gpu_agent.engines.registry import ENGINES
from legato_ingest.attribution.load import by_engine
from legato_ingest.attribution.load.scraped_metrics import _changes, _Series, scraped_metrics
from legato_ingest.attribution.model.metric_exclusion import is_still
from legato_ingest.attribution.model.scraped import PREEMPTIONS, PROMPT_TOKENS, SCRAPE_DISTANCE_NS_MAX, ScrapedMetrics
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store

PAGES = ROOT / "tests" / "gpu_agent" / "data" / "responses"
S = 1000 * MS
START = 10**15


def sampled(store: Store, engine_id: str, kind: str, names: tuple[str, str], boot: str) -> None:
    """Store two scrapes of an engine, a second apart, as the agent sends them."""
    page, samples = ExpositionReader(ENGINES[kind], engine_id), []
    for second, name in enumerate(names):
        now_ns = START + second * S
        up = Measurement("legato.engine.up", "1", 1.0, (("legato.boot.id", boot), ("legato.engine.id", engine_id)))
        samples += [(now_ns, each) for each in [up, *page.read((PAGES / name).read_bytes(), now_ns)]]
    rows = received_points(agent_request("node", samples), tenant="", now_ns=START, limits=Limits(retention_days=0))
    store.insert("node_samples", rows.samples)


def test_scrapes_are_read_as_the_agent_sent_them(store: Store) -> None:
    """Counters, hosts, and times between tokens; the latter only of engines that observe one time per step."""
    sampled(store, "vllm:1", "vllm", ("vllm_0.32.txt", "vllm_0.32_later.txt"), "boot-a")
    sampled(store, "sglang:1", "sglang", ("sglang_0.5.txt", "sglang_0.5_later.txt"), "boot-b")
    client = World().client(0)
    streams = [Stream("", START, bytes(16), bytes(8), client, None, engine, "", "") for engine in ("vllm:1", "sglang:1", "other:1")]
    found = scraped_metrics(store, streams)
    assert set(found) == {("", "vllm:1"), ("", "sglang:1")}
    vllm, sglang = found["", "vllm:1"], found["", "sglang:1"]
    assert vllm.boots == {"boot-a"} and vllm.scraped_ns.tolist() == [START, START + S]
    assert vllm.counters[PROMPT_TOKENS].values.tolist() == [0, 300] and vllm.counters[PREEMPTIONS].values.tolist() == [0, 1]
    later = (PAGES / "vllm_0.32_later.txt").read_text(encoding="utf-8")
    assert vllm.has_intervals and vllm.interval_ns_max.tolist() == [longest(later)]
    assert not sglang.has_intervals and sglang.counters[PREEMPTIONS].values.tolist() == [0, 1]


RANKED = b'engine="0"'


def scraped(store: Store, engine_id: str, texts: tuple[bytes, ...]) -> None:
    """Store scrapes a second apart, as the agent sends them, and the CPU times of its host."""
    page, samples = ExpositionReader(ENGINES["vllm"], engine_id), []
    for second, text in enumerate(texts):
        now_ns = START + second * S
        up = Measurement("legato.engine.up", "1", 1.0, (("legato.boot.id", "boot"), ("legato.engine.id", engine_id)))
        cpu = [
            Measurement("system.cpu.time", "s", second * part, (("cpu.mode", mode),), START) for mode, part in (("idle", 6), ("steal", 2))
        ]
        samples += [(now_ns, each) for each in [up, *cpu, *page.read(text, now_ns)]]
    rows = received_points(agent_request("node", samples), tenant="", now_ns=START, limits=Limits(retention_days=0))
    store.insert("node_samples", rows.samples)


def of(store: Store, engine_id: str) -> ScrapedMetrics:
    """Return the metrics of an engine that one stream has the id of."""
    return scraped_metrics(store, [Stream("", START, bytes(16), bytes(8), World().client(0), None, engine_id, "", "")])["", engine_id]


def test_ranks_behind_one_server_are_added_up(store: Store) -> None:
    """The rank of a stream is unknown: a preemption in any rank counts, and the longest time is that of all ranks."""
    before, after = ((PAGES / name).read_bytes() for name in ("vllm_0.32.txt", "vllm_0.32_later.txt"))
    both = tuple(text.replace(RANKED, b'engine="1"') + b"".join(_lines(before)) for text in (before, after))
    scraped(store, "vllm:1", both)
    found = of(store, "vllm:1")
    assert found.has_ranks and found.counters[PREEMPTIONS].values.tolist() == [0, 1]
    assert found.interval_ns_max.tolist() == [longest(after.decode())]
    # A scrape of one rank only, which is not the first.
    scraped(store, "vllm:2", tuple(text.replace(RANKED, b'engine="3"') for text in (before, after)))
    alone = of(store, "vllm:2")
    assert not alone.has_ranks and alone.counters[PREEMPTIONS].values.tolist() == [0, 1]
    # Another engine with an id that begins alike.
    scraped(store, "vllm:11", (before, after))
    assert of(store, "vllm:1").counters[PREEMPTIONS].values.tolist() == [0, 1] and not of(store, "vllm:11").has_ranks


def counted(store: Store, name: str, values: dict[int, float], engine_id: str = "e", **attributes: str) -> None:
    """Store a counter at these seconds, as a Collector sends it."""
    body = metrics_request({"legato.engine.id": engine_id, "host.name": "node"})
    for second, value in values.items():
        total(body, name, value, START + second * S, attributes={key.replace("__", "."): text for key, text in attributes.items()})
    store.insert("node_samples", received_points(body, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)


FOREIGN = "vllm:num_preemptions_total"


def test_ranks_that_a_collector_scraped_are_ranks(store: Store) -> None:
    """Under their original metric names and one engine id: the count of one rank is kept, and that there are several."""
    for rank, after in (("0", 7), ("1", 8)):
        counted(store, FOREIGN, {0: 7, 1: 7, 2: after}, engine=rank)
    found = of(store, "e")
    assert found.has_ranks and found.counters[PREEMPTIONS].values.tolist() == [0, 0, 1]


def test_a_restarted_rank_hides_nothing(store: Store) -> None:
    """One rank counts a preemption in the second in which another is reset to zero. A rank that appears has grown by its first value."""
    counted(store, FOREIGN, {0: 0, 1: 1, 2: 1}, engine="0")
    counted(store, FOREIGN, {0: 1, 1: 0, 2: 0}, engine="1")
    counted(store, FOREIGN, {2: 4}, engine="2")
    assert of(store, "e").counters[PREEMPTIONS].values.tolist() == [0, 2, 6]


def test_while_one_rank_is_not_scraped_nothing_is_known(store: Store) -> None:
    """A preemption in that rank would be seen at its next scrape, possibly long after the gap."""
    counted(store, FOREIGN, {second: 0 for second in range(120)}, engine="0")
    counted(store, FOREIGN, {second: 0 for second in range(80) if not 20 < second < 60}, engine="1")
    found = of(store, "e").counters[PREEMPTIONS]
    at = (found.times_ns - START) // S
    assert at.tolist() == [*range(21), *range(60, 80)]
    low = np.array([10, 30, 70, 90]) * S + START
    assert is_still(found, low, low + 5 * S).tolist() == [True, False, True, False]


@pytest.mark.parametrize("engine_id", ["team/llama", "vllm:1", "vllm:1/1"])
def test_ids_may_have_slashes_and_streams_may_have_a_rank(store: Store, engine_id: str) -> None:
    """A number behind the last slash is a rank. Its metrics count for the rank and for its server, for any selection of streams."""
    for rank, after in (("", 7), ("/1", 8), ("/canary", 9)):
        counted(store, PREEMPTIONS, {0: 7, 1: after}, engine_id + rank)
    streams = [Stream("", START, bytes(16), bytes(8), World().client(0), None, engine_id + rank, "", "") for rank in ("", "/1")]
    for selected in (streams, streams[:1]):
        found = scraped_metrics(store, selected)["", engine_id]
        assert found.has_ranks and found.counters[PREEMPTIONS].values.tolist() == [0, 1]
    assert not scraped_metrics(store, streams)["", engine_id + "/1"].has_ranks


def test_cpu_times_of_a_collector_are_left_out(store: Store) -> None:
    """The hostmetrics of a Collector, with or without the agent: single CPUs, an older attribute name, or no stolen time."""
    up = agent_request("node", [(START, Measurement("legato.engine.up", "1", 1.0, (("legato.engine.id", "e"),)))])
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


SAMPLES = st.lists(
    st.dictionaries(st.integers(0, 40), st.sampled_from([0.0, 1.0, 3.0]), min_size=1).map(lambda own: dict(sorted(own.items()))),
    min_size=1,
    max_size=6,
)


@given(SAMPLES, st.booleans())
@examples(200)
def test_added_up_series_are_known_where_none_has_a_hole(samples: list[dict[int, float]], only_growth: bool) -> None:
    """Series by series, and moment by moment, with samples at any multiples of ten seconds."""
    series = [_Series(("e", ""), [10 * S * at for at in own], list(own.values())) for own in samples]
    found = _changes(series, only_growth)
    first, last = min(min(own) for own in samples), max(max(own) for own in samples)
    expected, total = {}, 0.0
    for moment in sorted(set().union(*samples)):
        is_known = True
        for own in samples:
            before, after = [at for at in own if at <= moment], [at for at in own if at >= moment]
            if moment in own:
                change = own[moment] - (own[before[-2]] if len(before) > 1 else 0.0 if moment > first else own[moment])
                total += (max(change, 0.0) if len(before) > 1 else 0.0) if only_growth else abs(change)
            elif before:
                # The end of all samples is one ns behind the last of them.
                distance_ns = 10 * S * (after[0] - before[-1]) if after else 10 * S * (last - before[-1]) + 1
                is_known &= distance_ns <= SCRAPE_DISTANCE_NS_MAX
        if is_known:
            expected[10 * S * moment] = total
    assert dict(zip(found.times_ns.tolist(), found.values.tolist(), strict=True)) == expected


def test_the_time_to_add_up_series_grows_with_their_number() -> None:
    """Not with its square: 128,000 of one counter that end long before the last one took 20 s."""
    series = [_Series(("e", ""), [place * MS], [1.0]) for place in range(100_000)]
    started = time.process_time()
    assert len(_changes(series).times_ns) == 1
    assert time.process_time() - started < 2


def test_an_engine_with_very_many_samples_is_one_without(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of its ranks count; others that share the queries keep theirs."""
    monkeypatch.setattr(by_engine, "_SAMPLES_MAX", 12)
    for engine, count in (("few", 2), ("many", 13), ("ranks", 6), ("ranks/1", 7), ("some", 12)):
        counted(store, PREEMPTIONS, dict.fromkeys(range(count), 7.0), engine)
    streams = [
        Stream("", START, bytes(16), bytes(8), World().client(0), None, engine, "", "") for engine in ("few", "many", "ranks", "some")
    ]
    found = scraped_metrics(store, streams)
    assert {engine: len(own.counters[PREEMPTIONS].times_ns) for (_, engine), own in found.items()} == {"few": 2, "some": 12}


def _lines(page: bytes) -> list[bytes]:
    """Return the lines of the first rank."""
    return [line + b"\n" for line in page.splitlines() if RANKED in line]


def test_the_cpu_time_of_the_host_is_read(store: Store) -> None:
    """The total and the stolen time; not for an engine that was scraped on two hosts."""
    before, after = ((PAGES / name).read_bytes() for name in ("vllm_0.32.txt", "vllm_0.32_later.txt"))
    scraped(store, "vllm:1", (before, after))
    found = of(store, "vllm:1")
    assert found.counters["stolen"].values.tolist() == [0, 2] and found.counters["system.cpu.time"].values.tolist() == [0, 8]
    again = agent_request("other", [(START, Measurement("legato.engine.up", "1", 1.0, (("legato.engine.id", "vllm:1"),)))])
    store.insert("node_samples", received_points(again, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)
    assert "stolen" not in of(store, "vllm:1").counters


def longest(later: str) -> int:
    """Return the upper bound (ns) of the last bucket of times between tokens that grew between the two scrapes, in plain Python."""
    earlier = (pathlib.Path(PAGES) / "vllm_0.32.txt").read_text(encoding="utf-8")

    def buckets(text: str) -> list[tuple[float, float]]:
        lines = [line for line in text.splitlines() if line.startswith("vllm:inter_token_latency_seconds_bucket")]
        return [(float(line.split('le="')[1].split('"')[0]), float(line.rpartition(" ")[2])) for line in lines]

    grown = [(bound, after - before) for (bound, after), (_, before) in zip(buckets(later), buckets(earlier), strict=True)]
    steps = [(bound, more - below) for (bound, more), below in zip(grown, [0.0, *[more for _, more in grown]], strict=False)]
    return int(1e9 * max(bound for bound, count in steps if count > 0))
