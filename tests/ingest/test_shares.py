"""A limit that tenants share: no tenant is refused before it is reached, and no tenant has more than half of it beside others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.shares import Shares

STEPS = st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(1, 60)), max_size=40)


@given(STEPS)
def test_what_is_accepted_stays_within_the_limit(steps: list[tuple[str, int]]) -> None:
    """A request of any size is accepted where nothing else is held. What is released can be had again."""
    shares, held = Shares(100), list[tuple[str, int]]()
    for tenant, size in steps:
        of_tenant = sum(each for owner, each in held if owner == tenant)
        if not held:
            assert shares.has_room(tenant, size)
        elif shares.has_room(tenant, size):
            assert sum(each for _, each in held) + size <= 100
            assert not tenant or not of_tenant or of_tenant + size <= 50
        else:
            assert sum(each for _, each in held) + size > (50 if tenant else 100)
            while held:
                owner, released = held.pop()
                shares.add(owner, -released)
            assert shares.total == 0 and not shares._of_tenant
            continue
        held.append((tenant, size))
        shares.add(tenant, size)


def test_a_request_alone_may_have_any_size() -> None:
    """It arrives in parts; the parts before it are those of the request itself."""
    shares, own = Shares(100), 0
    for _ in range(5):
        assert shares.has_room("a", 60, own)
        shares.add("a", 60)
        own += 60
    assert not shares.has_room("b", 1) and not shares.has_room("a", 1)
    shares.add("a", -own)
    assert shares.has_room("b", 1)
