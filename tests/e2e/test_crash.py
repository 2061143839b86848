"""`legato serve` is killed under load, again and again: what it acknowledged is there, and once."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from bench.crash_pipelines.direct import storm
from bench.crash_pipelines.serve import Found, Serve, judge

KILLS = 20
SPANS = 2_000


@pytest.fixture
def serve(tmp_path: pathlib.Path) -> Iterator[Serve]:
    """The command on a fresh store."""
    running = Serve(tmp_path)
    yield running
    running.stop()


def test_twenty_kills_lose_nothing_and_double_nothing(serve: Serve) -> None:
    """SIGKILL at random moments under load, senders that retry, re-cut and repeat: every acknowledged stream is there once."""
    sent = storm(serve, KILLS, SPANS, seed=3)
    assert sent.retries > 0, "no kill met a request: the test has shown nothing"
    assert judge(serve, sent.revs) == Found(0, 0, 0)
    # The judge itself: a stream that was acknowledged and is not there is seen, and so is one that nobody sent.
    assert judge(serve, {*sent.revs, ("ab" * 16, "cd" * 8, 1)}) == Found(1, 0, 0)
    unsent = min(sent.revs)[:2]
    assert judge(serve, {rev for rev in sent.revs if rev[:2] != unsent}).strangers > 0
