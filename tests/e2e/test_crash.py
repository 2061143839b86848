"""`legato serve` is killed repeatedly under load: every acknowledged stream is stored, and only once."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from bench.crash_pipelines.direct import storm
from bench.crash_pipelines.serve import Found, Serve, judge

SPANS = 2_000


@pytest.fixture
def serve(tmp_path: pathlib.Path) -> Iterator[Serve]:
    """`legato serve` on an empty store."""
    running = Serve(tmp_path)
    yield running
    running.stop()


@pytest.mark.parametrize("kills", [8, pytest.param(20, marks=pytest.mark.long)])
def test_kills_lose_nothing_and_double_nothing(serve: Serve, kills: int) -> None:
    """SIGKILL at random moments under load; senders retry, split differently and repeat. Every acknowledged stream is stored once."""
    sent = storm(serve, kills, SPANS, seed=3)
    assert sent.retries > 0, "no kill interrupted a request, so the test has shown nothing"
    assert judge(serve, sent.revs) == Found(0, 0, 0)
    # `judge` itself works: it reports an acknowledged stream that is not stored, and a stored stream that was not sent.
    assert judge(serve, {*sent.revs, ("ab" * 16, "cd" * 8, 1)}) == Found(1, 0, 0)
    unsent = min(sent.revs)[:2]
    assert judge(serve, {rev for rev in sent.revs if rev[:2] != unsent}).strangers > 0


@pytest.mark.parametrize("kills", [5, pytest.param(12, marks=pytest.mark.long)])
def test_requests_are_acknowledged_while_the_store_is_killed(serve: Serve, kills: int) -> None:
    """SIGKILL to the process of the store at random moments: no request fails, and every acknowledged stream is stored once.

    From the fourth kill within a minute on, the next process starts after a pause that doubles.
    """
    sent = storm(serve, kills, SPANS, seed=4, of_store=True)
    assert sent.retries == 0 and sent.acknowledged
    assert judge(serve, sent.revs) == Found(0, 0, 0)
