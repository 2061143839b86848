"""What a tenant may take: rates, bytes that wait, names; over a limit it is told when to come back, and others notice nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import native_span, request
from legato_ingest.errors import Overloaded
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_points, convert_spans
from legato_ingest.write.quotas import TenantQuotas, label_hashes


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Clock, bytes_per_s: int = 0, in_flight_bytes_max: int = 0, cardinality_max: int = 0) -> TenantQuotas:
    return TenantQuotas(bytes_per_s=bytes_per_s, in_flight_bytes_max=in_flight_bytes_max, cardinality_max=cardinality_max, clock=clock)


def send(kept: TenantQuotas, size: int, tenant: str = "shop") -> None:
    """One request from its beginning to its reply."""
    with kept.request(tenant) as charge:
        charge(size)


def test_a_tenant_over_its_rate_waits_as_long_as_it_is_told() -> None:
    """Ten seconds' worth at once; then 429 with the time after which it is taken, which is true; another tenant is not touched."""
    clock = Clock()
    kept = limits(clock, bytes_per_s=100)
    send(kept, 1500)
    with pytest.raises(Overloaded) as refused:
        send(kept, 1)
    assert refused.value.retry_after_s == 5
    send(kept, 1000, "other")
    clock.now += 4.9
    with pytest.raises(Overloaded):
        send(kept, 1)
    clock.now += 0.1
    send(kept, 1)


def test_a_body_of_any_size_comes_through_when_its_time_has_come() -> None:
    """A large one overdraws, and nobody is told to wait for longer than a minute."""
    clock = Clock()
    kept = limits(clock, bytes_per_s=10)
    send(kept, 10_000)
    for _ in range(400):
        try:
            send(kept, 1)
            break
        except Overloaded as refused:
            assert refused.retry_after_s is not None and 1 <= refused.retry_after_s <= 60
            clock.now += refused.retry_after_s
    assert 980 <= clock.now - 1_000_000 <= 1_050


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 500)), max_size=60))
def test_over_any_time_a_tenant_gets_its_rate_and_no_more(requests: list[tuple[float, int]]) -> None:
    """What was taken is at most the burst, the rate over the time, and one request that overdrew."""
    clock = Clock()
    kept, taken = limits(clock, bytes_per_s=100), 0
    for pause, size in requests:
        clock.now += pause
        try:
            send(kept, size)
            taken += size
        except Overloaded:
            pass
    assert taken <= 1000 + 100 * (clock.now - 1_000_000) + 500


def test_what_waits_of_one_tenant_is_bounded() -> None:
    """Beyond it 429 for this tenant alone, until something of it is answered; a single body of any size is taken."""
    kept = limits(Clock(), in_flight_bytes_max=100)
    with kept.request("shop") as charge:
        charge(60)
        charge(60)
        with pytest.raises(Overloaded):
            send(kept, 1)
        send(kept, 90, "other")
    send(kept, 500)
    send(kept, 500)


def test_names_are_counted_by_the_hour() -> None:
    """What was brought before costs nothing; what is new beyond the limit is 429 until the hour is over."""
    clock = Clock()
    kept = limits(clock, cardinality_max=3)
    kept.check_cardinality("shop", {1, 2, 3})
    kept.check_cardinality("shop", {1, 3})
    kept.check_cardinality("other", {7, 8, 9})
    with pytest.raises(Overloaded) as refused:
        kept.check_cardinality("shop", {1, 4})
    assert refused.value.retry_after_s is not None and 1 <= refused.value.retry_after_s <= 60
    kept.check_cardinality("shop", {2})
    clock.now += 3600
    kept.check_cardinality("shop", {4})
    clock.now += 3600
    # One request with more than all of them would be refused for ever: it passes when the hour is new, and the next does not.
    kept.check_cardinality("shop", {1, 2, 3, 4, 5})
    with pytest.raises(Overloaded):
        kept.check_cardinality("shop", {6})


def test_names_are_what_multiplies_rows() -> None:
    """Combinations of a stream's names and series of samples; ids and times are none."""
    body = request()
    for model in ("a", "a", "b"):
        native_span(body, {"gen_ai.request.model": model})
    assert len(label_hashes(convert_spans(body, tenant="", now_ns=2**60, limits=Limits(retention_days=0)))) == 2
    points = metrics_request()
    for at, name in enumerate(("m", "m", "n")):
        gauge(points, name, 1.0, 10**18 + at)
    samples = convert_points(points, tenant="", now_ns=2**60, limits=Limits(retention_days=0))
    assert samples.samples.num_rows == 3 and len(label_hashes(samples)) == 2
