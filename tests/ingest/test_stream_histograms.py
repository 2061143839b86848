"""The histograms of streams: each number equals one that is computed stream by stream, and each exemplar is of a stream in its bucket."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_ingest.columns import STREAM_REVS
from legato_ingest.metrics import Metrics
from legato_ingest.stream_histograms import HISTOGRAMS, StreamHistograms

US = st.none() | st.sampled_from([0, 50_000, 50_001, 400_000, 60_000_000, 2**60]) | st.integers(0, 10**8)
STREAM = st.tuples(st.sampled_from(["a", "b", ""]), st.sampled_from(["client", "server"]), st.booleans(), US, US)
STREAMS = st.lists(STREAM, max_size=30)
Stream = tuple[str, str, bool, int | None, int | None]
NAMES = ("service_name", "vantage", "ended", "gap_max_us", "ttft_us")


def rows_of(streams: list[Stream], first: int) -> pa.Table:
    """Rows with the columns that are read."""
    columns = {name: pa.array([each[place] for each in streams], STREAM_REVS[name].type) for place, name in enumerate(NAMES)}
    traces = [(first + place).to_bytes(16, "big") for place in range(len(streams))]
    return pa.table({**columns, "trace_id": pa.array(traces, pa.binary(16))})


@settings(max_examples=60)
@given(st.lists(STREAMS, min_size=1, max_size=4))
def test_the_buckets_are_those_of_single_streams(batches: list[list[Stream]]) -> None:
    """Counts, sums and exemplars, over several batches; running streams and unknown values do not count."""
    histograms = StreamHistograms(lambda name: name)
    streams = [each for batch in batches for each in batch]
    first = 0
    for batch in batches:
        histograms.observe(pa.concat_tables([rows_of(batch[:7], first), rows_of(batch[7:], first + len(batch[:7]))]))
        first += len(batch)
    for place, (histogram, family) in enumerate(zip(HISTOGRAMS, histograms.collect(), strict=True)):
        known = [
            (service, vantage, value, trace)
            for trace, (service, vantage, ended, *values) in enumerate(streams)
            if ended and (value := values[place]) is not None
        ]
        assert {(each.labels["service"], each.labels["vantage"]) for each in family.samples} == {each[:2] for each in known}
        for sample in family.samples:
            labels = sample.labels["service"], sample.labels["vantage"]
            own = [(value, trace) for *of, value, trace in known if tuple(of) == labels]
            if sample.name.endswith("_sum"):
                assert abs(sample.value - sum(value for value, _ in own) / 1e6) <= 1e-9 * sample.value
                continue
            bound = float(sample.labels.get("le", "inf"))
            assert sample.value == sum(value / 1e6 <= bound for value, _ in own)
            if sample.exemplar is not None:
                value, trace = next((value, trace) for value, trace in own if f"{trace:032x}" == sample.exemplar.labels["trace_id"])
                below = max((each for each in histogram.bounds_s if each < bound), default=-1.0)
                assert sample.exemplar.value == value / 1e6 and below < value / 1e6 <= bound


def test_every_bucket_with_streams_has_an_exemplar() -> None:
    """The newest of them; services are named by the given function."""
    histograms = StreamHistograms(lambda name: "(other)")
    for first in (1, 2):
        histograms.observe(rows_of([("a", "client", True, 300_000, None)], first))
    gaps, ttfts = histograms.collect()
    (found,) = (sample for sample in gaps.samples if sample.exemplar is not None)
    assert found.labels == {"service": "(other)", "vantage": "client", "le": "0.4"} and found.value == 2
    assert found.exemplar is not None and found.exemplar.labels == {"trace_id": f"{2:032x}"} and not ttfts.samples


def test_services_without_a_timeline_take_no_name_of_the_slo() -> None:
    """Foreign emitters with nothing but a TTFT: a service that the SLO counts later keeps its name."""
    metrics = Metrics()
    metrics.stream_histograms.observe(rows_of([(f"s{number}", "client", True, None, 1) for number in range(300)], 1))
    metrics.count_results([("checkout", "client", "good", 1)])
    assert metrics.registry.get_sample_value("legato_streams_total", {"service": "checkout", "vantage": "client", "result": "good"}) == 1
    counted = {"service": "(other)", "vantage": "client"}
    assert metrics.registry.get_sample_value("legato_stream_ttft_seconds_count", counted) == 100
