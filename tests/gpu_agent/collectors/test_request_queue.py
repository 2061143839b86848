"""The queue of finished requests, and time differences of a request."""

from __future__ import annotations

import math

import pytest

from legato_gpu_agent.collectors.request_queue import QUEUE_MAX, RequestQueue, microseconds, seconds, text
from legato_gpu_agent.plugin.model import Engine, FinishedRequest
from legato_gpu_agent.plugin.protocol import Datagram


def test_requests_wait_until_the_epoch_is_known() -> None:
    """Then all of them are emitted in one datagram, once; beyond the bound the oldest are dropped and counted."""
    epoch, emitted = [0], list[Datagram]()
    queue = RequestQueue("e", emitted.append, lambda: epoch[0])
    for number in range(QUEUE_MAX + 2):
        queue.add(FinishedRequest(0, str(number)))
    queue.flush()
    assert emitted == [] and queue.dropped == 2
    epoch[0] = 7
    queue.flush()
    queue.flush()
    (datagram,) = emitted
    assert datagram.engine == Engine("e", 7)
    assert [each.response_id for each in datagram.finished] == [str(number) for number in range(2, QUEUE_MAX + 2)]


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [(1.0, 3.5, 2.5), (1.0, 1.0, 0.0), (None, 1.0, None), (1.0, None, None), (2.0, 1.0, None), (0.0, 1e6 + 1, None), (0.0, math.nan, None)],
)
def test_an_implausible_difference_is_unknown(start_s: float | None, end_s: float | None, expected: float | None) -> None:
    """Below 0, above 1e6 s, or not a number; a record has 0 for it."""
    assert seconds(start_s, end_s) == expected
    assert microseconds(seconds(start_s, end_s)) == round(1e6 * (expected or 0.0))


def test_a_text_can_be_encoded() -> None:
    """At most 255 characters, without lone surrogates."""
    assert text("ü" * 300) == "ü" * 255 and text("a\ud800b") == "a?b"
