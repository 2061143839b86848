"""Engines' pages, read: each to the same vocabulary, by figures that were worked out from the page by hand; and pages that are none."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from legato_gpu_agent.collectors.exposition import BadPage, Page
from legato_gpu_agent.collectors.measurement import Distribution, Found, Reading
from legato_gpu_agent.engines.registry import ENGINES, engine_of_page
from legato_gpu_agent.engines.signals import SIGNALS

PAGES = pathlib.Path(__file__).parents[1] / "data" / "pages"
S = 10**9
# Of the later of two pages: signals with their value, and histograms with how many came between the two and their sum.
EXPECTED: dict[str, dict[str, Any]] = {
    "vllm_0.32": {
        "requests.running": 10, "requests.waiting": 3, "kv_cache.utilization": 0.96875, "preemptions": 40, "tokens.prompt": 14301,
        "tokens.generated": 24718, "prefix_cache.queries": 14301, "prefix_cache.hits": 544, "requests.finished[length]": 74,
        "itl(step)": (246, 10.105), "ttft": (4, 1.177), "queue.time": (1, 1.012), "step.tokens": (25, 486.0),
    },
    "sglang_0.5": {
        "requests.running": 26, "requests.waiting": 4, "kv_cache.utilization": 0.66, "preemptions": 18, "preempted": 1,
        "tokens.prompt": 501521, "tokens.generated": 156777, "prefix_cache.hit_rate": 0.2992, "prefix_cache.queries": 676970,
        "prefix_cache.hits": 185472, "requests.cancelled": 9, "speculation.accept_length": 2.84, "itl(token)": (1910, 22.955),
        "queue.time": (4, 1.273),
    },
    # The same engine on two tensor-parallel ranks tells the same: no rank is counted twice.
    "sglang_0.5_tp2": {
        "requests.running": 26, "kv_cache.utilization": 0.66, "preemptions": 18, "tokens.prompt": 501521, "tokens.generated": 156777,
        "prefix_cache.queries": 676970, "itl(token)": (1910, 22.955), "queue.time": (4, 1.273),
    },
    "tgi_3.3": {
        "requests.running": 14, "requests.waiting": 3, "requests.finished": 212, "requests.cancelled": 5, "itl(request)": (3, 0.053),
        "queue.time": (3, 1.253),
    },
    "tensorrt_llm_prometheus": {
        "requests.running": 23, "requests.waiting": 1, "kv_cache.utilization": 0.97094, "preempted": 0, "prefix_cache.hit_rate": 0.2899,
        "speculation.draft_tokens": 49905, "speculation.accepted_tokens": 27944, "requests.finished[stop]": 168,
        "step.time": 0.030489,
        "step.requests": 22, "itl(request)": (3, 0.033), "ttft": (3, 4.383), "queue.time": (3, 4.039),
    },
    "triton_tensorrtllm": {
        "requests.running": 26, "requests.waiting": 5, "step.requests": 21, "kv_cache.utilization": 0.70155, "preempted": 1,
    },
    "llamacpp": {
        "requests.running": 4, "requests.waiting": 3, "tokens.prompt": 1844310, "prefix_cache.queries": 2356578,
        "prefix_cache.hits": 512268,
        "speculation.drafts": 152898, "speculation.draft_tokens": 611592, "speculation.accepted_tokens": 358348,
    },
    "llamacpp_real": {"requests.running": 0, "tokens.prompt": 50, "prefix_cache.queries": 112, "prefix_cache.hits": 62},
    "dynamo_frontend": {
        "requests.running": 6, "requests.waiting": 0, "requests.finished[success]": 18, "requests.cancelled": 1, "tokens.generated": 1475,
        "itl(token)": (451, 7.211), "ttft": (3, 0.246),
    },
    # A worker's page has its engine's families beside Dynamo's own: the engine's say more.
    "dynamo_component": {"requests.running": 10, "preemptions": 40, "tokens.prompt": 14301, "itl(step)": (246, 10.105)},
    "lmdeploy_0.18": {
        "requests.running": 12, "requests.waiting": 3, "kv_cache.utilization": 0.5734, "tokens.prompt": 87610, "tokens.generated": 22497,
        "prefix_cache.hit_rate": 0.1183, "speculation.drafts": 9080, "speculation.draft_tokens": 27240,
        "speculation.accepted_tokens": 13307, "itl(step)": (360, 12.323), "ttft": (3, 0.64), "queue.time": (1, 0.038),
    },
}  # fmt: skip
KINDS = {"llamacpp_real": "llamacpp", "dynamo_component": "vllm", "tensorrt_llm_prometheus": "tensorrt_llm", "triton_tensorrtllm": "triton"}


def text_of(name: str) -> bytes:
    """A page's bytes."""
    return (PAGES / f"{name}.txt").read_bytes()


def read_twice(name: str, engine_id: str = "e") -> list[Found]:
    """What the later of an engine's two pages tells, a second after the first."""
    earlier, later = text_of(name), text_of(f"{name}_later")
    engine = engine_of_page(earlier)
    assert engine is not None
    page = Page(engine, engine_id)
    page.read(earlier, 5 * S)
    return page.read(later, 6 * S)


def called(found: Found) -> str:
    """A signal's short name with what tells it from its like."""
    attributes = dict(found.attributes)
    reason, per = attributes.get("reason"), attributes.get("legato.engine.per")
    return found.metric.removeprefix("legato.engine.") + (f"[{reason}]" if reason else "") + (f"({per})" if per else "")


@pytest.mark.parametrize("name", EXPECTED)
def test_each_engine_speaks_the_vocabulary(name: str) -> None:
    """Every figure of the page under the one name, in the one unit; counters since the first page, histograms what came since it."""
    found = read_twice(name)
    told = {called(each): each for each in found}
    assert len(told) == len(found), "two readings of one series"
    for signal, expected in EXPECTED[name].items():
        each = told[signal]
        if isinstance(each, Distribution):
            assert sum(each.counts) == expected[0] and each.total == pytest.approx(expected[1], abs=0.001), signal
            assert each.since_ns == 5 * S and len(each.counts) == len(each.bounds) + 1 and list(each.bounds) == sorted(each.bounds)
        else:
            assert each.value == pytest.approx(expected, abs=5e-6), signal
            assert each.since_ns == (5 * S if SIGNALS[each.metric].kind == "counter" else 0)
    assert {each.unit for each in found} == {SIGNALS[each.metric].unit for each in found}


@pytest.mark.parametrize("name", EXPECTED)
def test_whose_page_it_is_the_page_says(name: str) -> None:
    """By its families, with nobody else's taken for it."""
    engine = engine_of_page(text_of(name))
    assert engine is not None and engine.kind == KINDS.get(name, re.sub(r"_[0-9].*", "", name))
    assert {dict(each.attributes)["legato.engine.kind"] for each in read_twice(name)} == {engine.kind}


@pytest.mark.parametrize("kind", ENGINES)
def test_what_an_engine_lacks_is_said(kind: str) -> None:
    """Each signal that the attribution would use is on the engine's page, or it is said why not."""
    engine = ENGINES[kind]
    has = {rule.signal.name.removeprefix("legato.engine.") for rule in engine.rules}
    wanted = {name.removeprefix("legato.engine.") for name, signal in SIGNALS.items() if signal.loses}
    assert wanted - has - set(engine.lacks) == set()
    assert not has & set(engine.lacks) and set(engine.lacks) <= {name.removeprefix("legato.engine.") for name in SIGNALS}


def test_the_first_page_has_no_histograms() -> None:
    """What was observed before anybody looked is nobody's second."""
    page = Page(ENGINES["vllm"], "e")
    assert all(isinstance(each, Reading) for each in page.read(text_of("vllm_0.32"), S))


def test_an_engine_that_started_anew_loses_nothing() -> None:
    """Its counters begin anew after the page before; all that its histograms hold came since."""
    page = Page(ENGINES["vllm"], "e")
    page.read(text_of("vllm_0.32_later"), S)
    page.read(text_of("vllm_0.32_later"), 2 * S)
    found = {called(each): each for each in page.read(text_of("vllm_0.32"), 3 * S)}
    preemptions, itl = found["preemptions"], found["itl(step)"]
    assert isinstance(preemptions, Reading) and (preemptions.value, preemptions.since_ns) == (39, 2 * S)
    assert isinstance(itl, Distribution) and itl.since_ns == 2 * S
    (count,) = re.findall(rb"^vllm:inter_token_latency_seconds_count\S* (\S+)$", text_of("vllm_0.32"), re.M)
    assert sum(itl.counts) == float(count) > 1000


def test_ranks_are_engines_of_their_own() -> None:
    """The first has the plain id, as the plugin calls it; others follow with a slash."""
    text = text_of("vllm_0.32") + text_of("vllm_0.32").replace(b'engine="0"', b'engine="3"')
    found = Page(ENGINES["vllm"], "10.0.0.1:8000").read(text, S)
    assert {dict(each.attributes)["legato.engine.id"] for each in found} == {"10.0.0.1:8000", "10.0.0.1:8000/3"}
    assert len({(each.metric, each.attributes) for each in found}) == len(found)


def scheduler_lines(dp_rank: int, tp_rank: int, running: int) -> bytes:
    """What one of SGLang's schedulers tells: the rank that counts a gauge, and every one a histogram."""
    labels = f'dp_rank="{dp_rank}",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="{tp_rank}"'
    first = f"sglang:num_running_reqs{{{labels}}} {running}\n" if tp_rank % 2 == 0 or tp_rank == 9 else ""
    bucket = "sglang:queue_time_seconds_bucket"
    return f'{first}{bucket}{{le="1.0",{labels}}} {running}\n{bucket}{{le="+Inf",{labels}}} {running}\n'.encode()


def by_engine(found: list[Found]) -> dict[tuple[str, str], float]:
    """Values, and of histograms how many came, by engine and signal."""
    values = {(dict(each.attributes)["legato.engine.id"], called(each)): each for each in found}
    assert len(values) == len(found)
    return {key: sum(each.counts) if isinstance(each, Distribution) else each.value for key, each in values.items()}


def test_each_of_sglangs_data_parallel_ranks_is_told() -> None:
    """Of 8 ranks in 4, dp_rank 1 has the ranks 2 and 3: the lowest on the page tells, once, whichever order the lines have."""
    ranks = [(tp_rank // 2, tp_rank) for tp_rank in (5, 0, 7, 2, 1, 3, 6, 4)]
    earlier, later = (b"".join(scheduler_lines(*rank, 10 * rank[0] + more) for rank in ranks) for more in (3, 7))
    page = Page(ENGINES["sglang"], "e")
    assert by_engine(page.read(earlier, S)) == {(own, "requests.running"): 10 * at + 3 for at, own in enumerate(("e", "e/1", "e/2", "e/3"))}
    layout = page._layout
    told = by_engine(page.read(later, 2 * S))
    assert told == {
        (own, name): 10 * at + 7 if name == "requests.running" else 4
        for at, own in enumerate(("e", "e/1", "e/2", "e/3"))
        for name in ("requests.running", "queue.time")
    }
    assert page._layout is layout, "a page that is laid out as the one before is not judged anew"


def test_the_lowest_rank_is_the_lowest_number() -> None:
    """9 comes before 10; when it is gone, the next one counts. A line without a rank counts, one of a later pipeline stage does not."""
    nine, ten = scheduler_lines(3, 9, 5), scheduler_lines(3, 10, 6)
    bare = b'sglang:num_queue_reqs{model_name="m"} 2\nsglang:num_running_reqs{pp_rank="1",tp_rank="0",dp_rank="3"} 50\n'
    page = Page(ENGINES["sglang"], "e")
    assert by_engine(page.read(ten + nine + bare, S)) == {("e/3", "requests.running"): 5, ("e", "requests.waiting"): 2}
    assert by_engine(page.read(ten + bare, 2 * S))["e/3", "requests.running"] == 6


def queue_time(*counts: float | str, others: bytes = b"") -> bytes:
    """A page with this histogram, up to 1 s and to any, if at all."""
    lines = [f'sglang:queue_time_seconds_bucket{{le="{bound}"}} {count}\n' for bound, count in zip(("1.0", "+Inf"), counts, strict=False)]
    total = f"sglang:queue_time_seconds_sum {counts[1]}\n" if counts else ""
    return b"sglang:num_running_reqs 1\n" + "".join([*lines, total]).encode() + others


def came(page: Page, text: bytes, now_ns: int) -> tuple[tuple[int, ...], float | None, int] | None:
    """Of this page's histogram: counts, sum, and since when."""
    for each in page.read(text, now_ns):
        if isinstance(each, Distribution) and each.attributes == (("legato.engine.id", "e"), ("legato.engine.kind", "sglang")):
            return each.counts, each.total, each.since_ns
    return None


def test_a_histogram_that_began_after_the_page_before_is_told_whole() -> None:
    """Many engines make one when they first observe something: that is in it, and is of the time since the page before."""
    page = Page(ENGINES["sglang"], "e")
    assert [came(page, queue_time(), at * S) for at in (1, 2)] == [None, None]
    with pytest.raises(BadPage):
        page.read(b"cut off", 3 * S)
    assert came(page, queue_time(1, 3), 4 * S) == ((1, 2), 3.0, 2 * S)
    assert came(page, queue_time(2, 4), 5 * S) == ((1, 0), 1.0, 4 * S)
    # It went with its engine, whose next life makes it anew.
    assert [came(page, queue_time(), at * S) for at in (6, 7)] == [None, None]
    assert came(page, queue_time(1, 2), 8 * S) == ((1, 1), 2.0, 5 * S)


def test_a_histogram_that_nobody_knows_from_before_is_not_told_whole() -> None:
    """On the first page, or where an earlier one had it without its numbers: how much of it is old is nowhere said."""
    page = Page(ENGINES["sglang"], "e")
    assert came(page, queue_time(100, 300), S) is None and came(page, queue_time(100, 301), 2 * S) == ((0, 1), 1.0, S)
    page = Page(ENGINES["sglang"], "e")
    assert [came(page, text, S) for text in (queue_time("NaN", "NaN"), queue_time(), queue_time(100, 300))] == [None] * 3
    assert came(page, queue_time(101, 301), 2 * S) == ((1, 0), 1.0, S)
    page = Page(ENGINES["sglang"], "e")
    told_sum_only = queue_time(others=b"sglang:queue_time_seconds_sum 5\n")
    assert [came(page, text, S) for text in (told_sum_only, queue_time(100, 300))] == [None] * 2


def test_a_histogram_that_left_the_page_and_came_back_is_not_told_anew() -> None:
    """What was told before it left is not told again; nor when so many others came and went meanwhile that it was forgotten."""
    page = Page(ENGINES["sglang"], "e")
    for at, text in enumerate((queue_time(), queue_time(100, 300), queue_time(), queue_time()), 1):
        came(page, text, at * S)
    assert came(page, queue_time(101, 301), 5 * S) == ((1, 0), 1.0, 2 * S)
    bounds = ("1.0", "+Inf")
    for at in range(6, 9):
        names = [f'dp_rank="{at}{number:03}",le="{bound}"' for number in range(600) for bound in bounds]
        others = "".join(f"sglang:queue_time_seconds_bucket{{{name}}} 1\n" for name in names).encode()
        page.read(queue_time(others=others), at * S)
    assert [came(page, queue_time(*counts), 9 * S) for counts in ((102, 301), (102, 301))] == [None, None]
    assert came(page, queue_time(103, 302), 10 * S) == ((1, 0), 1.0, 9 * S)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (text_of("vllm_0.32")[:-200], "is cut off"),
        (b"", "is cut off"),
        (b"# nothing\n", "none of"),
        (b"process_cpu_seconds_total 5\n", "none of"),
        (text_of("sglang_0.5"), "none of"),
        (b"vllm:num_requests_running{engine=\"0\"} five\n", "no line of Prometheus"),
        (b"vllm:num_requests_running{engine=\"0} 5\n", "no line of Prometheus"),
        (b"vllm:num_requests_running{\xff\xfe} 5\n", "no line of Prometheus"),
        (b"vllm:num_requests_running 5 1700000000000\n", "a time of its own"),
        (b"<html>502 Bad Gateway</html>\n", "none of"),
    ],
    ids=range(10),
)  # fmt: skip
def test_what_is_no_page_is_told(text: bytes, why: str) -> None:
    """Cut off, another's, garbage: an error that says what was found, and the page after it is read as if nothing had been."""
    page = Page(ENGINES["vllm"], "e")
    page.read(text_of("vllm_0.32"), S)
    with pytest.raises(BadPage, match=why):
        page.read(text, 2 * S)
    assert {called(each): each for each in page.read(text_of("vllm_0.32_later"), 3 * S)}["preemptions"].value == 40  # type: ignore[union-attr]


def test_numbers_that_are_none_are_left_out() -> None:
    """SGLang prints NaN for what it has not measured; infinity is no gauge."""
    text = b'sglang:num_running_reqs{tp_rank="0"} NaN\nsglang:num_queue_reqs{tp_rank="0"} +Inf\nsglang:token_usage{tp_rank="0"} 0.5\n'
    assert [called(each) for each in Page(ENGINES["sglang"], "e").read(text, S)] == ["kv_cache.utilization"]


def test_histograms_with_numbers_that_are_none() -> None:
    """Of a bound that is told twice the finite counts; a page that tells nothing of a histogram is as if it had not been read."""

    def text(*counts: str) -> bytes:
        names = (*(f'bucket{{{{engine="0",le="{bound}"{{}}}}}}' for bound in ("0.1", "1.0", "+Inf")), 'sum{{engine="0"{}}}')
        lines = [
            f"vllm:inter_token_latency_seconds_{name.format(rank)} {count}"
            for rank, number in (("", 0), (',x="2"', 1))
            for name, count in zip(names, counts[number::2], strict=True)
        ]
        return "\n".join([*lines, ""]).encode()

    page = Page(ENGINES["vllm"], "e")
    assert page.read(text("1", "2", "3", "NaN", "4", "5", "0.5", "NaN"), S) == []
    assert page.read(text(*["NaN"] * 8) + b"vllm:num_requests_running 1\n", 2 * S)[1:] == []
    (found,) = page.read(text("2", "3", "NaN", "5", "9", "8", "NaN", "1.5"), 3 * S)
    assert isinstance(found, Distribution)
    assert (found.bounds, found.counts, found.total, found.since_ns) == ((0.1, 1.0), (2, 0, 6), 1.0, S)


def test_labels_that_never_end_cost_bounded_memory() -> None:
    """A page whose labels are new at every reading is forgotten again and again."""
    page = Page(ENGINES["vllm"], "e")
    for number in range(30):
        lines = b"".join(b'vllm:num_requests_running{x="%d-%d"} 1\n' % (number, each) for each in range(5_000))
        ((reading,),) = [page.read(lines, (number + 1) * S)]
        assert isinstance(reading, Reading) and reading.value == 5_000
    assert len(page._heads) <= 50_000
    page.read(b"vllm:num_requests_running 1\n", 40 * S)
    assert len(page._heads) == 1


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_bytes_are_readings_or_a_bad_page(data: st.DataObject) -> None:
    """Pages with pieces cut out, doubled, or of other bytes never raise anything else, and never tell a number that is none."""
    text = text_of(data.draw(st.sampled_from(["vllm_0.32", "sglang_0.5", "tgi_3.3", "triton_tensorrtllm"])))
    engine = engine_of_page(text)
    assert engine is not None
    at, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
    hurt = text[:at] + data.draw(st.one_of(st.just(b""), st.just(text[at:end] * 2), st.binary(max_size=200))) + text[end:]
    page = Page(engine, "e")
    for now_s, each in enumerate((text, hurt, text), 1):
        try:
            found = page.read(each, now_s * S)
        except BadPage:
            continue
        assert all(each.value == each.value and abs(each.value) < float("inf") for each in found if isinstance(each, Reading))
        assert all(min(each.counts) >= 0 for each in found if isinstance(each, Distribution))


@pytest.mark.parametrize("name", ["vllm_0.32", "vllm_0.32_kv_mfu", "sglang_0.5", "tgi_3.3", "triton_tensorrtllm"])
def test_the_official_parser_says_the_same(name: str) -> None:
    """Every gauge and counter against a page that it read whole: added up, or the largest of ratios, over what the rule leaves apart."""
    text = text_of(name)
    engine = engine_of_page(text)
    assert engine is not None
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    expected: dict[tuple[str, str], list[float]] = {}
    for rule in engine.rules:
        for sample in samples:
            ours = all(sample.labels.get(label) == value for label, value in rule.where.items())
            first = all(sample.labels.get(label, value) == value for label, value in engine.only.items())
            # Where a page says that a family is a counter, the parser adds the ending that its name lacks.
            if (
                sample.name in (rule.family, f"{rule.family}_total")
                and rule.signal.kind != "histogram"
                and ours
                and first
                and sample.value == sample.value
            ):
                reason = "".join(sample.labels.get(label, "") for label in rule.keep)
                expected.setdefault((rule.signal.name, reason), []).append(sample.value)
    found = {
        (each.metric, dict(each.attributes).get("reason", "")): each.value
        for each in Page(engine, "e").read(text, S)
        if isinstance(each, Reading)
    }
    wanted = {key: max(values) if SIGNALS[key[0]].unit == "1" else sum(values) for key, values in expected.items()}
    assert found == pytest.approx(wanted)


def test_what_left_a_page_is_not_remembered_for_long() -> None:
    """A line of a megabyte, or ten thousand labels a second: once the page is as it was, no more than that page is kept."""
    text, page = (PAGES / "vllm_0.32.txt").read_bytes(), Page(ENGINES["vllm"], "e")
    for second in range(60):
        strange = b"".join(b'made_up{id="%d.%d"} 1\n' % (second, number) for number in range(1_000))
        told = b'vllm:num_requests_running{engine="0",model_name="%d"} 1\n' % second
        page.read(text + strange + told + b"x" * 2**20 + b"%d 1\n" % second, second * S)
    for second in range(60, 62):
        page.read(text, second * S)
    assert page._heads_bytes < 65_536 + 2 * len(text) and len(page._heads) < 1_000 + 2 * text.count(b"\n")
    assert len(page._counters._seen) < 1_000
