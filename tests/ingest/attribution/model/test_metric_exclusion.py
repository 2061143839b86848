"""What scraped metrics exclude and name where no step was recorded: only with scrapes all the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.attribution import MS, gap, verdict
from legato_ingest.attribution.model.charge import charge
from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.metric_exclusion import MetricFindings, excluded_by_metrics, is_still, name_by_exclusion
from legato_ingest.attribution.model.scraped import CPU_WAIT, PREEMPTIONS, PROMPT_TOKENS, MetricCounter, ScrapedMetrics
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import CORE

S = 1000 * MS
START = 10**15
# One gap of 400 ms, 100 s after the first scrape; 200 scrapes, one a second.
GAP = (START + 100 * S + 300 * MS, START + 100 * S + 700 * MS)
SEEN = START + np.arange(200) * S


def metrics(
    moved: dict[str, float] | None = None,
    at_s: float = 101,
    longest_ms: int = 450,
    waited_s: float = 0.0,
    stolen_s: float = 0.0,
    ranks: bool = False,
) -> ScrapedMetrics:
    """Return scrapes in which these counters grew by so much in the given second, with the longest time between tokens, the
    engine's waits, and the stolen time of eight CPUs in that second.
    """
    counters = {name: MetricCounter(SEEN, np.where(SEEN >= START + at_s * S, more, 0.0)) for name, more in (moved or {}).items()}
    for name in (PROMPT_TOKENS, PREEMPTIONS):
        counters.setdefault(name, MetricCounter(SEEN, np.zeros(len(SEEN))))
    counters[CPU_WAIT] = MetricCounter(SEEN, np.where(SEEN >= START + at_s * S, waited_s, 0.0))
    counters["stolen"] = MetricCounter(SEEN, np.where(SEEN >= START + at_s * S, stolen_s, 0.0))
    counters["system.cpu.time"] = MetricCounter(SEEN, np.arange(0.0, 8.0 * len(SEEN), 8.0))
    long_at = np.array([START + at_s * S], np.int64)
    return ScrapedMetrics(counters, SEEN, long_at, np.array([longest_ms * MS], np.int64), True, frozenset({"boot"}), ranks)


def named(scraped: ScrapedMetrics, same_clock: bool = True, gap: tuple[int, int] = GAP) -> tuple[str, dict[str, str]]:
    """Return the cause of a gap at the server, and the excluded causes."""
    start, end = np.array([gap[0]]), np.array([gap[1]])
    findings = excluded_by_metrics(scraped, start, end, np.array([same_clock]))
    gaps, verdicts = waited_for()
    verdicts = name_by_exclusion(gaps, verdicts, findings)
    assert (verdicts.parts.sum(axis=1) == gaps.length_ns).all()
    return verdicts.names()[0], findings.excluded[0]


def waited_for() -> tuple[Gaps, Verdicts]:
    """Return one gap that the server saw, without steps of its engine, and its verdict."""
    gaps = gap(0, 425, 0, 424, usual_ns=20)
    verdicts = charge(gaps, None)
    assert verdicts.names() == ["generation"]
    return gaps, verdicts


def test_what_the_engine_never_made_was_the_front_end() -> None:
    """The engine's histogram has no time half as long as the gap around it, so its core is excluded."""
    cause, excluded = named(metrics({PROMPT_TOKENS: 300, PREEMPTIONS: 1}, longest_ms=200))
    assert cause == "front_end" and set(excluded) == {"scheduling", "kv_pressure", "gpu_clock", "host"}
    assert named(metrics({PROMPT_TOKENS: 300, PREEMPTIONS: 1}, longest_ms=201))[0] == "generation"


@pytest.mark.parametrize(
    ("scraped", "cause"),
    [
        (metrics({PROMPT_TOKENS: 300}), "scheduling"),
        (metrics({PREEMPTIONS: 2}), "kv_pressure"),
        (metrics({PREEMPTIONS: 2, PROMPT_TOKENS: 300}), "generation"),
        (metrics({}), "generation"),
        (metrics({PROMPT_TOKENS: 300}, waited_s=0.9), "host"),
        (metrics({PROMPT_TOKENS: 300}, stolen_s=8 * 0.9), "host"),
        (metrics({PROMPT_TOKENS: 300}, stolen_s=8 * 0.5), "generation"),
        (metrics({PROMPT_TOKENS: 300}, stolen_s=0.9), "scheduling"),
        # What moved in one of several ranks says nothing of a stream, what none of them made does.
        (metrics({PROMPT_TOKENS: 300}, ranks=True), "generation"),
        (metrics({PREEMPTIONS: 2}, ranks=True), "generation"),
        (metrics({PROMPT_TOKENS: 300}, waited_s=0.9, ranks=True), "generation"),
        (metrics({PREEMPTIONS: 2}, longest_ms=200, ranks=True), "front_end"),
        (metrics({PROMPT_TOKENS: 300}, waited_s=0.3), "scheduling"),
        # Between a time that the engine made and one that it did not, nothing is named.
        (metrics({PROMPT_TOKENS: 300}, longest_ms=300), "generation"),
    ],
)
def test_what_is_left_is_named(scraped: ScrapedMetrics, cause: str) -> None:
    """A prompt if no preemption was counted, a preemption if no prompt was, the host if threads waited much more than usual."""
    assert named(scraped)[0] == cause


def test_a_prompt_is_counted_after_its_last_piece() -> None:
    """A prompt counted 3 s after the gap may be its cause; one counted 30 s after it only if the clocks may differ."""
    assert "scheduling" not in named(metrics({PROMPT_TOKENS: 300}, at_s=103))[1]
    assert "scheduling" in named(metrics({PROMPT_TOKENS: 300}, at_s=130))[1]
    assert "scheduling" not in named(metrics({PROMPT_TOKENS: 300}, at_s=130), same_clock=False)[1]


def test_holes_rule_nothing_out() -> None:
    """No scrape for half a minute, before the gap, after it, or at all: nothing is concluded."""
    whole = metrics({}, longest_ms=10)
    holed = np.flatnonzero((START + 90 * S > SEEN) | (START + 125 * S < SEEN))
    for kept in (holed, np.arange(0, 99), np.arange(101, 200), np.arange(0)):
        counters = {name: MetricCounter(each.times_ns[kept], each.values[kept]) for name, each in whole.counters.items()}
        cut = replace(whole, counters=counters, scraped_ns=SEEN[kept])
        assert named(cut) == ("generation", {})
    assert named(replace(whole, counters={}, has_intervals=False)) == ("generation", {})


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(st.integers(0, 100), unique=True), values=st.lists(st.integers(0, 3)), low=st.integers(0, 100), length=st.integers(0, 50)
)
def test_is_still_is_what_a_loop_would_say(times: list[int], values: list[int], low: int, length: int) -> None:
    """Compared with plain Python over the scrapes around the stretch."""
    count = min(len(times), len(values))
    at = sorted(times[:count])
    counter = MetricCounter(np.array(at, np.int64) * S, np.array(values[:count], float))
    said = bool(is_still(counter, np.array([low * S]), np.array([(low + length) * S]))[0])
    before, after = [i for i in range(count) if at[i] <= low], [i for i in range(count) if at[i] >= low + length]
    expected = count > 1 and bool(before) and bool(after)
    if expected:
        inside = range(before[-1], max(before[-1], after[0]) + 1)
        expected = len({values[i] for i in inside}) == 1 and all(at[i + 1] - at[i] <= 30 for i in inside[:-1])
    assert said == expected


def test_engines_of_several_hosts_under_one_id_exclude_nothing() -> None:
    """It is unknown which of them served the stream."""
    assert named(replace(metrics({}, longest_ms=10), boots=frozenset({"a", "b"}))) == ("generation", {})


@pytest.mark.parametrize(
    ("cause", "fields"), [("host", {"step_first": 1}), ("connection", {}), ("unknown", {})], ids=["aligned", "path", "unknown"]
)
def test_only_generation_at_the_server_takes_a_name(cause: str, fields: dict[str, int]) -> None:
    """Other verdicts stay, and so does a gap that the server did not see."""
    findings = MetricFindings.none(1)
    findings.excluded[0].update(dict.fromkeys(CORE, "excluded"))
    seen, own = gap(0, 400, 0, 400), verdict(cause, {cause: 400}, **fields)
    assert name_by_exclusion(seen, own, findings).names() == [cause]
    alone = replace(seen, has_server=np.array([False]))
    assert name_by_exclusion(alone, verdict("generation", {"generation": 400}), findings).names() == ["generation"]
    assert name_by_exclusion(seen, verdict("generation", {"generation": 400}), findings).names() == ["front_end"]


def test_findings_of_several_engines_are_put_together() -> None:
    """Each at the rows of its gaps."""
    out, part = MetricFindings.none(3), MetricFindings.none(1)
    part.excluded[0]["host"] = "why"
    part.prompts[:] = part.waited[:] = True
    out.put(np.array([1]), part)
    assert out.excluded == [{}, {"host": "why"}, {}] and out.prompts.tolist() == [False, True, False]
    assert out.waited.tolist() == [False, True, False] and not out.preemptions.any() and not out.waited_some.any()
