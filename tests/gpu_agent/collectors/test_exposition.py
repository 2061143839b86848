"""Exposition texts of all engines, translated into the signal catalogue and compared with values derived by hand; and invalid texts."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from legato_gpu_agent.collectors import exposition
from legato_gpu_agent.collectors.exposition import BadExposition, ExpositionReader
from legato_gpu_agent.collectors.measurement import Distribution, Measured, Measurement
from legato_gpu_agent.engines.registry import ENGINES, detect_engine
from legato_gpu_agent.engines.signals import SIGNALS

RESPONSES = pathlib.Path(__file__).parents[1] / "data" / "responses"
S = 10**9
# Expected from the later of two texts: signals with their value, and histograms with the number and sum of the observations in between.
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
    # The same engine on two tensor-parallel ranks has the same values: no rank is counted twice.
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
    # A worker's text has its engine's families next to Dynamo's; the engine's are used.
    "dynamo_component": {"requests.running": 10, "preemptions": 40, "tokens.prompt": 14301, "itl(step)": (246, 10.105)},
    "lmdeploy_0.18": {
        "requests.running": 12, "requests.waiting": 3, "kv_cache.utilization": 0.5734, "tokens.prompt": 87610, "tokens.generated": 22497,
        "prefix_cache.hit_rate": 0.1183, "speculation.drafts": 9080, "speculation.draft_tokens": 27240,
        "speculation.accepted_tokens": 13307, "itl(step)": (360, 12.323), "ttft": (3, 0.64), "queue.time": (1, 0.038),
    },
}  # fmt: skip
KINDS = {"llamacpp_real": "llamacpp", "dynamo_component": "vllm", "tensorrt_llm_prometheus": "tensorrt_llm", "triton_tensorrtllm": "triton"}


def text_of(name: str) -> bytes:
    """Return the bytes of a recorded text."""
    return (RESPONSES / f"{name}.txt").read_bytes()


def read_twice(name: str, engine_id: str = "e") -> list[Measured]:
    """Return the measurements of the later of an engine's two texts, one second after the first."""
    earlier, later = text_of(name), text_of(f"{name}_later")
    engine = detect_engine(earlier)
    assert engine is not None
    reader = ExpositionReader(engine, engine_id)
    reader.read(earlier, 5 * S)
    return reader.read(later, 6 * S)


def called(found: Measured) -> str:
    """Return a signal's short name with its distinguishing attributes."""
    attributes = dict(found.attributes)
    reason, per = attributes.get("reason"), attributes.get("legato.engine.per")
    return found.metric.removeprefix("legato.engine.") + (f"[{reason}]" if reason else "") + (f"({per})" if per else "")


@pytest.mark.parametrize("name", EXPECTED)
def test_each_engine_has_catalogue_signals(name: str) -> None:
    """Every value under its one name and unit; counters since the first text, histograms of the time since then."""
    found = read_twice(name)
    by_signal = {called(each): each for each in found}
    assert len(by_signal) == len(found), "two measurements of one series"
    for signal, expected in EXPECTED[name].items():
        each = by_signal[signal]
        if isinstance(each, Distribution):
            assert sum(each.counts) == expected[0] and each.total == pytest.approx(expected[1], abs=0.001), signal
            assert each.start_ns == 5 * S and len(each.counts) == len(each.bounds) + 1 and list(each.bounds) == sorted(each.bounds)
        else:
            assert each.value == pytest.approx(expected, abs=5e-6), signal
            assert each.start_ns == (5 * S if SIGNALS[each.metric].kind == "counter" else None)
    assert {each.unit for each in found} == {SIGNALS[each.metric].unit for each in found}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_text_identifies_the_engine(name: str) -> None:
    """By its families; no text is taken for another engine's."""
    engine = detect_engine(text_of(name))
    assert engine is not None and engine.kind == KINDS.get(name, re.sub(r"_[0-9].*", "", name))
    assert {dict(each.attributes)["legato.engine.kind"] for each in read_twice(name)} == {engine.kind}


@pytest.mark.parametrize("kind", ENGINES)
def test_missing_signals_have_a_reason(kind: str) -> None:
    """Each signal that attribution uses is in the engine's text, or the table gives the reason."""
    engine = ENGINES[kind]
    has = {rule.signal.name.removeprefix("legato.engine.") for rule in engine.rules}
    wanted = {name.removeprefix("legato.engine.") for name, signal in SIGNALS.items() if signal.unknown}
    assert wanted - has - set(engine.lacks) == set()
    assert not has & set(engine.lacks) and set(engine.lacks) <= {name.removeprefix("legato.engine.") for name in SIGNALS}


def test_the_first_text_has_no_histograms() -> None:
    """The time of observations before the first scrape is unknown."""
    reader = ExpositionReader(ENGINES["vllm"], "e")
    assert all(isinstance(each, Measurement) for each in reader.read(text_of("vllm_0.32"), S))


def test_a_restarted_engine_loses_nothing() -> None:
    """Its counters start after the last text; its histograms contain new observations only."""
    reader = ExpositionReader(ENGINES["vllm"], "e")
    reader.read(text_of("vllm_0.32_later"), S)
    reader.read(text_of("vllm_0.32_later"), 2 * S)
    found = {called(each): each for each in reader.read(text_of("vllm_0.32"), 3 * S)}
    preemptions, itl = found["preemptions"], found["itl(step)"]
    assert isinstance(preemptions, Measurement) and (preemptions.value, preemptions.start_ns) == (39, 2 * S)
    assert isinstance(itl, Distribution) and itl.start_ns == 2 * S
    (count,) = re.findall(rb"^vllm:inter_token_latency_seconds_count\S* (\S+)$", text_of("vllm_0.32"), re.M)
    assert sum(itl.counts) == float(count) > 1000


def test_ranks_are_separate_engines() -> None:
    """The first has the plain id, as from the plugin; the others have a slash and a number."""
    text = text_of("vllm_0.32") + text_of("vllm_0.32").replace(b'engine="0"', b'engine="3"')
    found = ExpositionReader(ENGINES["vllm"], "10.0.0.1:8000").read(text, S)
    assert {dict(each.attributes)["legato.engine.id"] for each in found} == {"10.0.0.1:8000", "10.0.0.1:8000/3"}
    assert len({(each.metric, each.attributes) for each in found}) == len(found)


def scheduler_lines(dp_rank: int, tp_rank: int, running: int) -> bytes:
    """Return the lines of one SGLang scheduler: its rank has a gauge, and every rank a histogram."""
    labels = f'dp_rank="{dp_rank}",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="{tp_rank}"'
    first = f"sglang:num_running_reqs{{{labels}}} {running}\n" if tp_rank % 2 == 0 or tp_rank == 9 else ""
    bucket = "sglang:queue_time_seconds_bucket"
    return f'{first}{bucket}{{le="1.0",{labels}}} {running}\n{bucket}{{le="+Inf",{labels}}} {running}\n'.encode()


def by_engine(found: list[Measured]) -> dict[tuple[str, str], float]:
    """Return values, and for histograms the number of observations, by engine and signal."""
    values = {(dict(each.attributes)["legato.engine.id"], called(each)): each for each in found}
    assert len(values) == len(found)
    return {key: sum(each.counts) if isinstance(each, Distribution) else each.value for key, each in values.items()}


def test_each_data_parallel_rank_of_sglang_is_read() -> None:
    """Of 8 ranks in 4, dp_rank 1 has the ranks 2 and 3: the lowest in the text counts, once, for any order of lines."""
    ranks = [(tp_rank // 2, tp_rank) for tp_rank in (5, 0, 7, 2, 1, 3, 6, 4)]
    earlier, later = (b"".join(scheduler_lines(*rank, 10 * rank[0] + more) for rank in ranks) for more in (3, 7))
    reader = ExpositionReader(ENGINES["sglang"], "e")
    assert by_engine(reader.read(earlier, S)) == {
        (own, "requests.running"): 10 * at + 3 for at, own in enumerate(("e", "e/1", "e/2", "e/3"))
    }
    layout = reader._layout
    by_signal = by_engine(reader.read(later, 2 * S))
    assert by_signal == {
        (own, name): 10 * at + 7 if name == "requests.running" else 4
        for at, own in enumerate(("e", "e/1", "e/2", "e/3"))
        for name in ("requests.running", "queue.time")
    }
    assert reader._layout is layout, "a text with the same lines as the last one is not parsed again"


def test_the_lowest_rank_is_the_lowest_number() -> None:
    """9 comes before 10; without it the next one counts. A line without a rank counts, one of a later pipeline stage does not."""
    nine, ten = scheduler_lines(3, 9, 5), scheduler_lines(3, 10, 6)
    bare = b'sglang:num_queue_reqs{model_name="m"} 2\nsglang:num_running_reqs{pp_rank="1",tp_rank="0",dp_rank="3"} 50\n'
    reader = ExpositionReader(ENGINES["sglang"], "e")
    assert by_engine(reader.read(ten + nine + bare, S)) == {("e/3", "requests.running"): 5, ("e", "requests.waiting"): 2}
    assert by_engine(reader.read(ten + bare, 2 * S))["e/3", "requests.running"] == 6


def test_the_priorities_of_sglang_are_not_added_to_their_total() -> None:
    """With priority scheduling the total has an empty priority, and each priority a sample besides; without it there is no label."""
    lines = [
        f'sglang:{name}{{model_name="m",tp_rank="0",pp_rank="0",priority="{priority}"}} {value}\n'
        for name, values in (("num_running_reqs", (10, 7, 3)), ("num_queue_reqs", (4, 4, 0)))
        for priority, value in zip(("", "0", "5"), values, strict=True)
    ]
    found = by_engine(ExpositionReader(ENGINES["sglang"], "e").read("".join(lines).encode(), S))
    assert found == {("e", "requests.running"): 10, ("e", "requests.waiting"): 4}


def queue_time(*counts: float | str, others: bytes = b"") -> bytes:
    """Return a text with this histogram, up to 1 s and to infinity, or without it."""
    lines = [f'sglang:queue_time_seconds_bucket{{le="{bound}"}} {count}\n' for bound, count in zip(("1.0", "+Inf"), counts, strict=False)]
    total = f"sglang:queue_time_seconds_sum {counts[1]}\n" if counts else ""
    return b"sglang:num_running_reqs 1\n" + "".join([*lines, total]).encode() + others


def added(reader: ExpositionReader, text: bytes, now_ns: int) -> tuple[tuple[int, ...], float | None, int] | None:
    """Return counts, sum and start of this text's histogram."""
    for each in reader.read(text, now_ns):
        if isinstance(each, Distribution) and each.attributes == (("legato.engine.id", "e"), ("legato.engine.kind", "sglang")):
            return each.counts, each.total, each.start_ns
    return None


def test_a_new_histogram_is_complete() -> None:
    """Many engines create a histogram at its first observation: it contains that, since the last text."""
    reader = ExpositionReader(ENGINES["sglang"], "e")
    assert [added(reader, queue_time(), at * S) for at in (1, 2)] == [None, None]
    with pytest.raises(BadExposition):
        reader.read(b"cut off", 3 * S)
    assert added(reader, queue_time(1, 3), 4 * S) == ((1, 2), 3.0, 2 * S)
    assert added(reader, queue_time(2, 4), 5 * S) == ((1, 0), 1.0, 4 * S)
    # The engine restarted without the histogram, and creates it again.
    assert [added(reader, queue_time(), at * S) for at in (6, 7)] == [None, None]
    assert added(reader, queue_time(1, 2), 8 * S) == ((1, 1), 2.0, 5 * S)


def test_a_histogram_of_unknown_age_is_not_complete() -> None:
    """In the first text, or after a text with invalid numbers for it: how much of it is old is unknown."""
    reader = ExpositionReader(ENGINES["sglang"], "e")
    assert added(reader, queue_time(100, 300), S) is None and added(reader, queue_time(100, 301), 2 * S) == ((0, 1), 1.0, S)
    reader = ExpositionReader(ENGINES["sglang"], "e")
    assert [added(reader, text, S) for text in (queue_time("NaN", "NaN"), queue_time(), queue_time(100, 300))] == [None] * 3
    assert added(reader, queue_time(101, 301), 2 * S) == ((1, 0), 1.0, S)
    reader = ExpositionReader(ENGINES["sglang"], "e")
    sum_only = queue_time(others=b"sglang:queue_time_seconds_sum 5\n")
    assert [added(reader, text, S) for text in (sum_only, queue_time(100, 300))] == [None] * 2


def test_a_histogram_that_returns_is_not_counted_again() -> None:
    """Observations counted before it vanished are not counted again, also if it was removed from the memory meanwhile."""
    reader = ExpositionReader(ENGINES["sglang"], "e")
    for at, text in enumerate((queue_time(), queue_time(100, 300), queue_time(), queue_time()), 1):
        added(reader, text, at * S)
    assert added(reader, queue_time(101, 301), 5 * S) == ((1, 0), 1.0, 2 * S)
    bounds = ("1.0", "+Inf")
    for at in range(6, 9):
        names = [f'dp_rank="{at}{number:03}",le="{bound}"' for number in range(600) for bound in bounds]
        others = "".join(f"sglang:queue_time_seconds_bucket{{{name}}} 1\n" for name in names).encode()
        reader.read(queue_time(others=others), at * S)
    assert [added(reader, queue_time(*counts), 9 * S) for counts in ((102, 301), (102, 301))] == [None, None]
    assert added(reader, queue_time(103, 302), 10 * S) == ((1, 0), 1.0, 9 * S)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (text_of("vllm_0.32")[:-200], "is cut off"),
        (b"", "is cut off"),
        (b"# nothing\n", "none of"),
        (b"process_cpu_seconds_total 5\n", "none of"),
        (text_of("sglang_0.5"), "none of"),
        (b"vllm:num_requests_running{engine=\"0\"} five\n", "not a line of Prometheus"),
        (b"vllm:num_requests_running{engine=\"0} 5\n", "not a line of Prometheus"),
        (b"vllm:num_requests_running{\xff\xfe} 5\n", "not a line of Prometheus"),
        (b"vllm:num_requests_running 5 1700000000000\n", "has a timestamp"),
        (b'vllm:time_to_first_token_seconds_bucket{le="decode"} 5\n', "the bound le='decode': expected a number"),
        (b'vllm:time_to_first_token_seconds_bucket{le="NaN"} 5\n', "the bound le='NaN': expected a number"),
        (b"<html>502 Bad Gateway</html>\n", "none of"),
    ],
    ids=range(12),
)  # fmt: skip
def test_invalid_texts_are_reported(text: bytes, why: str) -> None:
    """Truncated, of another engine, or garbage: the error names what was found, and the next text is read as usual."""
    reader = ExpositionReader(ENGINES["vllm"], "e")
    reader.read(text_of("vllm_0.32"), S)
    with pytest.raises(BadExposition, match=why):
        reader.read(text, 2 * S)
    assert {called(each): each for each in reader.read(text_of("vllm_0.32_later"), 3 * S)}["preemptions"].value == 40  # type: ignore[union-attr]


def test_values_that_are_not_finite_are_left_out() -> None:
    """SGLang prints NaN for values without data; infinity is not a valid gauge."""
    text = b'sglang:num_running_reqs{tp_rank="0"} NaN\nsglang:num_queue_reqs{tp_rank="0"} +Inf\nsglang:token_usage{tp_rank="0"} 0.5\n'
    assert [called(each) for each in ExpositionReader(ENGINES["sglang"], "e").read(text, S)] == ["kv_cache.utilization"]


def test_histograms_with_values_that_are_not_finite() -> None:
    """Of two lines for one bound the finite one counts; a text without valid numbers for a histogram is skipped for it."""

    def text(*counts: str) -> bytes:
        names = (*(f'bucket{{{{engine="0",le="{bound}"{{}}}}}}' for bound in ("0.1", "1.0", "+Inf")), 'sum{{engine="0"{}}}')
        lines = [
            f"vllm:inter_token_latency_seconds_{name.format(rank)} {count}"
            for rank, number in (("", 0), (',x="2"', 1))
            for name, count in zip(names, counts[number::2], strict=True)
        ]
        return "\n".join([*lines, ""]).encode()

    reader = ExpositionReader(ENGINES["vllm"], "e")
    assert reader.read(text("1", "2", "3", "NaN", "4", "5", "0.5", "NaN"), S) == []
    assert reader.read(text(*["NaN"] * 8) + b"vllm:num_requests_running 1\n", 2 * S)[1:] == []
    (found,) = reader.read(text("2", "3", "NaN", "5", "9", "8", "NaN", "1.5"), 3 * S)
    assert isinstance(found, Distribution)
    assert (found.bounds, found.counts, found.total, found.start_ns) == ((0.1, 1.0), (2, 0, 6), 1.0, S)


@pytest.mark.parametrize(("heads_max", "kept", "left"), [(50_000, 1_000 + 3 * 2_000, 1), (1_500, 1_500, 501)])
def test_unbounded_labels_use_bounded_memory(monkeypatch: pytest.MonkeyPatch, heads_max: int, kept: int, left: int) -> None:
    """A text with new labels at every scrape is removed from the cache again and again, and one beyond the bound while it is read."""
    monkeypatch.setattr(exposition, "_HEADS_MAX", heads_max)
    reader = ExpositionReader(ENGINES["vllm"], "e")
    for number in range(10):
        lines = b"".join(b'vllm:num_requests_running{x="%d-%d"} 1\n' % (number, each) for each in range(2_000))
        (found,) = reader.read(lines, (number + 1) * S)
        assert isinstance(found, Measurement) and found.value == 2_000
        assert len(reader._heads) <= kept
    reader.read(b"vllm:num_requests_running 1\n", 40 * S)
    assert len(reader._heads) == left


@given(data=st.data())
def test_any_bytes_are_measurements_or_an_error(data: st.DataObject) -> None:
    """Texts with parts removed, repeated or replaced raise no other error, and yield no value that is not finite."""
    text = text_of(data.draw(st.sampled_from(["vllm_0.32", "sglang_0.5", "tgi_3.3", "triton_tensorrtllm"])))
    engine = detect_engine(text)
    assert engine is not None
    at, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
    damaged = text[:at] + data.draw(st.one_of(st.just(b""), st.just(text[at:end] * 2), st.binary(max_size=200))) + text[end:]
    reader = ExpositionReader(engine, "e")
    for now_s, each in enumerate((text, damaged, text), 1):
        try:
            found = reader.read(each, now_s * S)
        except BadExposition:
            continue
        assert all(each.value == each.value and abs(each.value) < float("inf") for each in found if isinstance(each, Measurement))
        assert all(min(each.counts) >= 0 for each in found if isinstance(each, Distribution))


@pytest.mark.parametrize("name", ["vllm_0.32", "vllm_0.32_kv_mfu", "sglang_0.5", "tgi_3.3", "triton_tensorrtllm"])
def test_the_official_parser_agrees(name: str) -> None:
    """Every gauge and counter against Prometheus' parser on the complete text: added up, or the largest ratio, over dropped labels."""
    text = text_of(name)
    engine = detect_engine(text)
    assert engine is not None
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    expected: dict[tuple[str, str], list[float]] = {}
    for rule in engine.rules:
        for sample in samples:
            ours = all(sample.labels.get(label, "") == value for label, value in rule.where.items())
            first = all(sample.labels.get(label, value) == value for label, value in engine.required_labels.items())
            # The parser adds the suffix of a counter that its name lacks.
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
        for each in ExpositionReader(engine, "e").read(text, S)
        if isinstance(each, Measurement)
    }
    wanted = {key: max(values) if SIGNALS[key[0]].unit == "1" else sum(values) for key, values in expected.items()}
    assert found == pytest.approx(wanted)


def test_vanished_lines_are_removed_from_the_cache() -> None:
    """After a line of a megabyte, or ten thousand labels a second, the cache shrinks to the usual text."""
    text, reader = (RESPONSES / "vllm_0.32.txt").read_bytes(), ExpositionReader(ENGINES["vllm"], "e")
    for second in range(60):
        strange = b"".join(b'made_up{id="%d.%d"} 1\n' % (second, number) for number in range(1_000))
        by_signal = b'vllm:num_requests_running{engine="0",model_name="%d"} 1\n' % second
        reader.read(text + strange + by_signal + b"x" * 2**20 + b"%d 1\n" % second, second * S)
    for second in range(60, 62):
        reader.read(text, second * S)
    assert reader._heads_bytes < 65_536 + 2 * len(text) and len(reader._heads) < 1_000 + 2 * text.count(b"\n")
    assert len(reader._counters._seen) < 1_000
