"""Quotas of a tenant: rate, in-flight bytes and cardinality; their time to retry after, and no effect on other tenants."""

from __future__ import annotations

import contextlib

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
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def quotas_of(clock: Clock, bytes_per_s: int = 0, in_flight_bytes_max: int = 0, cardinality_max: int = 0) -> TenantQuotas:
    """Return quotas with this clock; a quota of 0 is off."""
    return TenantQuotas(bytes_per_s=bytes_per_s, in_flight_bytes_max=in_flight_bytes_max, cardinality_max=cardinality_max, clock=clock)


def send(quotas: TenantQuotas, size: int, tenant: str = "shop") -> None:
    """Send one request with a body of this size and receive its reply."""
    with quotas.request(tenant) as charge:
        charge(size)


def test_a_tenant_over_its_rate_is_accepted_after_the_stated_time() -> None:
    """It can send 1.5 s of its rate at once, then gets 429 with an exact time to retry after; another tenant is not affected."""
    clock = Clock()
    quotas = quotas_of(clock, bytes_per_s=100)
    send(quotas, 150)
    send(quotas, 500)
    with pytest.raises(Overloaded) as refused:
        send(quotas, 1)
    assert refused.value.retry_after_s == 5
    send(quotas, 1000, "other")
    clock.now += 4.9
    with pytest.raises(Overloaded):
        send(quotas, 1)
    clock.now += 0.1
    send(quotas, 1)


def test_a_body_of_any_size_is_accepted_after_a_wait() -> None:
    """A large body overdraws the balance. The time to retry after is at most one minute."""
    clock = Clock()
    quotas = quotas_of(clock, bytes_per_s=10)
    send(quotas, 10_000)
    for _ in range(400):
        try:
            send(quotas, 1)
            break
        except Overloaded as refused:
            assert refused.retry_after_s is not None and 1 <= refused.retry_after_s <= 60
            clock.now += refused.retry_after_s
    assert 980 <= clock.now - 1_000_000 <= 1_050


def test_requests_that_began_together_do_not_overdraw_one_after_another() -> None:
    """One of them may, whatever the size of its body; the others are refused."""
    quotas = quotas_of(Clock(), bytes_per_s=100)
    with quotas.request("shop") as first, quotas.request("shop") as second, quotas.request("shop") as third:
        first(100)
        second(100)
        second(5_000)
        for charge in (first, third):
            with pytest.raises(Overloaded) as refused:
                charge(1)
            assert refused.value.retry_after_s == 51
        second(5_000)
    with pytest.raises(Overloaded):
        send(quotas, 1)


def test_a_request_that_overdraws_is_not_replaced_by_another() -> None:
    """Two large bodies arrive in turns, slower than the rate: the first one passes, and the other one after it."""
    clock = Clock()
    quotas = quotas_of(clock, bytes_per_s=100)
    with quotas.request("shop") as first, quotas.request("shop") as second:
        first(200)
        clock.now += 2
        with pytest.raises(Overloaded) as refused:
            second(200)
        assert refused.value.retry_after_s == 1
        first(200)
    clock.now += 2
    with quotas.request("shop") as second:
        second(400)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 500)), max_size=60))
def test_a_tenant_never_exceeds_its_rate(requests: list[tuple[float, int]]) -> None:
    """The accepted bytes are at most the burst, the rate times the elapsed time, and one request that overdrew."""
    clock = Clock()
    quotas, accepted = quotas_of(clock, bytes_per_s=100), 0
    for pause, size in requests:
        clock.now += pause
        try:
            send(quotas, size)
            accepted += size
        except Overloaded:
            pass
    assert accepted <= 1000 + 100 * (clock.now - 1_000_000) + 500


@pytest.mark.parametrize("slowness", [10, 1])
def test_a_slow_request_keeps_no_other_waiting(slowness: int) -> None:
    """A body that overdraws the rate and arrives at a tenth of it is protected for some ten seconds; one at the rate until its end."""
    clock = Clock()
    quotas, accepted_at, refused_at = quotas_of(clock, bytes_per_s=1_000), list[int](), list[int]()
    with quotas.request("shop") as first:
        first(2_000)
        for second in range(300):
            clock.now += 1
            try:
                first(1_000 // slowness)
            except Overloaded:
                refused_at.append(second)
                break
            with contextlib.suppress(Overloaded):
                send(quotas, 2_000)
                accepted_at.append(second)
    if slowness == 1:
        assert not accepted_at and not refused_at
    else:
        assert 9 < accepted_at[0] <= refused_at[0] < 20


def test_the_end_of_a_paid_body_is_not_refused() -> None:
    """It is counted as a part without bytes."""
    clock = Clock()
    quotas = quotas_of(clock, bytes_per_s=100)
    with quotas.request("shop") as first:
        first(100)
        send(quotas, 200)
        first(0)


def test_replies_over_the_rate_are_held_back() -> None:
    """For a quarter of a second, and 40 a second of a tenant, unless so many wait that one would be held for over 2 s."""
    clock = Clock()
    quotas = quotas_of(clock, bytes_per_s=100)
    send(quotas, 10_000)
    send(quotas, 10_000, "other")

    def hold_s(tenant: str) -> float:
        with pytest.raises(Overloaded) as refused:
            send(quotas, 1, tenant)
        return round(refused.value.hold_s, 6)

    assert [hold_s("shop") for _ in range(3)] == [0.25, 0.275, 0.3] and hold_s("other") == 0.25
    assert max(hold_s("shop") for _ in range(1_000)) == 2
    clock.now += 10
    assert hold_s("shop") == 0.25


def test_in_flight_bytes_are_limited_by_tenant() -> None:
    """Over the limit this tenant gets 429 until one of its requests is answered; a single body of any size is accepted."""
    quotas = quotas_of(Clock(), in_flight_bytes_max=100)
    with quotas.request("shop") as charge:
        charge(60)
        charge(60)
        with pytest.raises(Overloaded):
            send(quotas, 1)
        send(quotas, 90, "other")
    send(quotas, 500)
    send(quotas, 500)


def test_cardinality_is_counted_by_the_hour() -> None:
    """Known combinations are always accepted; new ones over the limit get 429 until the hour ends."""
    clock = Clock()
    quotas = quotas_of(clock, cardinality_max=3)
    quotas.check_cardinality("shop", {1, 2, 3})
    quotas.check_cardinality("shop", {1, 3})
    quotas.check_cardinality("other", {7, 8, 9})
    with pytest.raises(Overloaded) as refused:
        quotas.check_cardinality("shop", {1, 4})
    assert refused.value.retry_after_s is not None and 1 <= refused.value.retry_after_s <= 60
    quotas.check_cardinality("shop", {2})
    clock.now += 3600
    quotas.check_cardinality("shop", {4})
    clock.now += 3600
    # One request with more combinations than the limit would be refused for ever, so the first request of an hour is always accepted.
    quotas.check_cardinality("shop", {1, 2, 3, 4, 5})
    with pytest.raises(Overloaded):
        quotas.check_cardinality("shop", {6})


def test_new_combinations_are_accepted_up_to_the_limit() -> None:
    """Not only in the first request of an hour."""
    quotas = quotas_of(Clock(), cardinality_max=3)
    for labels in ({1}, {2}, {3}):
        quotas.check_cardinality("shop", labels)
    with pytest.raises(Overloaded):
        quotas.check_cardinality("shop", {4})


def test_labels_and_series_are_counted() -> None:
    """Combinations of stream labels and series of samples count; ids and times do not."""
    body = request()
    for model in ("a", "a", "b"):
        native_span(body, {"gen_ai.request.model": model})
    assert len(label_hashes(convert_spans(body, tenant="", now_ns=2**60, limits=Limits(retention_days=0)))) == 2
    points = metrics_request()
    for at, name in enumerate(("m", "m", "n")):
        gauge(points, name, 1.0, 10**18 + at)
    samples = convert_points(points, tenant="", now_ns=2**60, limits=Limits(retention_days=0))
    assert samples.samples.num_rows == 3 and len(label_hashes(samples)) == 2
