"""CPU waits and stolen time around a stall: between the samples that surround it, on one host, over resets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.attribution import gap, ints, verdict
from legato_ingest.attribution.model.cpu_wait import CpuSamples, CpuSeries, cpu_waits_around, cpu_waits_of

S = 10**9
ROW = np.array([0])


def series(*samples: tuple[float, float], host: str = "node", is_total: bool = True) -> CpuSeries:
    """Return a counter, given as the time of each sample in seconds and its value."""
    times, values = zip(*samples, strict=True) if samples else ((), ())
    return CpuSeries(host, ints(*(1000 * at for at in times)), np.array(values, np.float64), is_total)


def around(samples: CpuSamples, start_s: float, end_s: float) -> dict[str, int]:
    """Return the evidence about one stretch."""
    (found,) = cpu_waits_around(samples, ints(1000 * start_s), ints(1000 * end_s))
    return found


def test_times_of_all_processes_and_cpus_are_added_up() -> None:
    """The samples that surround the stretch count; the reported length is their longest distance."""
    waits = [series((0, 1.0), (1, 1.1), (2, 1.7)), series((0, 5.0), (1, 5.0), (3, 5.2))]
    found = around(CpuSamples(waits, [series((0, 70.0), (2, 70.3))]), 1.2, 1.9)
    assert found == {"cpu_wait_us": 800_000, "cpu_wait_of_us": 2_000_000, "cpu_stolen_us": 300_000, "cpu_stolen_of_us": 2_000_000}


def test_a_reset_takes_nothing_back() -> None:
    """Growth before the reset stays counted; growth until the next sample is unknown."""
    assert around(CpuSamples([series((0, 9.0), (1, 9.5), (2, 0.1), (3, 0.3))]), 0, 3)["cpu_wait_us"] == 700_000


@pytest.mark.parametrize(("start", "end"), [(-0.2, 0.3), (2.9, 3.2), (20, 21)])
def test_without_samples_around_it_there_is_no_evidence(start: float, end: float) -> None:
    """Before the first, after the last, and between two that are far apart."""
    assert around(CpuSamples([series((0, 9.0), (1, 9.5), (3, 9.6), *(((40, 19.0),) if start > 3 else ()))]), start, end) == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 1e9])
def test_a_counter_of_something_else_is_left_out(value: float) -> None:
    """The values exceed 1e9 s, or are no numbers."""
    assert around(CpuSamples([series((0, 0.0), (1, value))]), 0, 1) == {}
    assert around(CpuSamples([series()]), 0, 1) == {}


def test_samples_of_two_hosts_are_of_two_engines() -> None:
    """Within the given time only, because an engine may have moved before."""
    one, other = series((0, 1.0), (9, 1.5), host="a"), series((20, 1.0), (29, 1.5), host="b")
    both = CpuSamples([one, other], [series((0, 3.0), (9, 4.0), host="a"), series((0, 3.0), (9, 9.0), host="b")])
    assert not both.on_one_host(0, 30 * S).waits
    first = both.on_one_host(0, 10 * S)
    assert [each.host for each in (*first.waits, *first.stolen)] == ["a", "a"]


def test_stolen_time_of_single_cpus_counts_only_without_the_total() -> None:
    """The agent samples all CPUs together, a Collector each of them."""
    waits, total = [series((0, 1.0), (1, 1.1))], series((0, 5.0), (1, 5.4))
    cpus = [series((0, 5.0), (1, 5.3), is_total=False), series((0, 5.0), (1, 5.1), is_total=False)]
    for stolen in ([total, *cpus], cpus):
        assert around(CpuSamples(waits, stolen).on_one_host(0, S), 0, 1)["cpu_stolen_us"] == 400_000


def test_scrapes_give_the_host_of_an_engine_without_processes() -> None:
    """The host of sampled processes takes precedence over the host of a scrape."""
    scraped, stolen = [series((0, 1.0), host="monitor")], [series((0, 5.0), (1, 6.0), host="monitor")]
    assert len(CpuSamples((), stolen, scraped).on_one_host(0, S).stolen) == 1
    assert not CpuSamples([series((0, 1.0), (1, 1.1))], stolen, scraped).on_one_host(0, S).stolen
    assert not CpuSamples((), stolen).on_one_host(0, S).stolen


@pytest.mark.parametrize(("host_ms", "count"), [(20, 1), (19, 0)])
def test_a_gap_with_a_part_of_the_host_has_evidence(host_ms: float, count: int) -> None:
    """The part must be a twentieth of the gap. Times are by the clock of the engine's records."""
    seen = gap(0, 400, 600, 1000, clock_offset_ns=1000)
    own = verdict("host", {"base": 400 - host_ms, "host": host_ms}, step_first=1, step_last=1)
    found = cpu_waits_of(CpuSamples([series((1, 1.0), (2, 1.5))]), seen, own, ROW)
    assert found == {0: {"cpu_wait_us": 500_000, "cpu_wait_of_us": 1_000_000}} if count else found == {}
    assert cpu_waits_of(CpuSamples(), seen, own, ROW[:0]) == {}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats()), max_size=8, unique_by=lambda each: each[0]), st.integers(0, 30), st.integers(0, 5)
)
def test_it_never_counts_backwards(samples: list[tuple[int, float]], start: int, lasted: int) -> None:
    """For any values of a counter."""
    found = around(CpuSamples([series(*sorted(samples, key=lambda each: each[0]))]), start, start + lasted)
    assert not found or (found["cpu_wait_us"] >= 0 and found["cpu_wait_of_us"] >= 1_000_000 * lasted)
