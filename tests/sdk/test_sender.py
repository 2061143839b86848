"""The queue of ended spans: batches, a full queue, an exporter that fails, hangs or raises, and a fork."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import legato
from helpers.servers.waiting import until
from legato._sender import BATCH_MAX, Sender
from legato._tally import tally
from legato._timeline import TIMELINE
from legato._worker import Worker

HOUR_S = 3600.0


class Endpoint:
    """Stands in for an exporter: it keeps batches, and answers with ``answer``, which may wait or raise."""

    def __init__(self, answer: Callable[[], bool] = lambda: True) -> None:
        self.batches: list[list[Any]] = []
        self.made = 0
        self._answer = answer

    def make(self) -> Callable[[Sequence[Any]], bool]:
        """Make an exporter, as a sender does once per process."""
        self.made += 1
        return self._export

    def _export(self, spans: Sequence[Any]) -> bool:
        self.batches.append(list(spans))
        return self._answer()


@pytest.fixture
def fates() -> Iterator[Callable[[], dict[str, int]]]:
    """Return a function that returns the fates since the test began, without those of streams that other tests left as garbage."""
    gc.collect()
    legato.flush()
    before = tally.counts()
    yield lambda: {fate: number - before[fate] for fate, number in tally.counts().items() if number != before[fate]}
    tally.has_new_losses()


def test_spans_leave_in_order_and_batches(fates: Callable[[], dict[str, int]]) -> None:
    """A full batch leaves at once, a flush sends the rest; reports about running streams are no streams."""
    endpoint = Endpoint()
    sender = Sender(endpoint.make, HOUR_S)
    for number in range(BATCH_MAX + 40):
        sender.put(number, is_stream=number % 2 == 0)
    until(lambda: endpoint.batches)
    assert sender.flush(10) and sender.flush(0)
    assert [number for batch in endpoint.batches for number in batch] == list(range(BATCH_MAX + 40))
    assert max(map(len, endpoint.batches)) <= BATCH_MAX
    assert fates() == {"exported": (BATCH_MAX + 40) // 2} and endpoint.made == 1


class Interrupted(threading.Condition):
    """A condition in which a handler of a signal raises once its lock is held: `with` never leaves it then."""

    def __enter__(self) -> bool:
        super().__enter__()
        raise TimeoutError("the time limit of the application")


def test_no_interruption_leaves_the_lock_held(fates: Callable[[], dict[str, int]]) -> None:
    """The lock is taken in C, where no handler runs: a condition's `with` is Python code."""
    endpoint = Endpoint()
    sender, worker = Sender(endpoint.make, 0.01), Worker(0)
    sender._changed, worker._idle = Interrupted(sender._lock), Interrupted(worker._counting)
    sender.put("span", is_stream=True)
    assert sender.flush(60) and endpoint.batches == [["span"]] and fates() == {"exported": 1}
    worker._starter.is_starting = True
    assert worker.flush(60)


class Long:
    """A span with a timeline of so many bytes."""

    def __init__(self, size: int) -> None:
        self.attributes = {TIMELINE: bytes(size)}


def test_spans_have_a_bound_of_bytes(fates: Callable[[], dict[str, int]]) -> None:
    """Long timelines leave in small batches, and those that do not fit while the endpoint does not answer are lost and counted."""
    answered = threading.Event()
    endpoint = Endpoint(lambda: answered.wait(60))
    sender = Sender(endpoint.make, 0.01)
    for _ in range(300):
        sender.put(Long(1 << 18), is_stream=True)
    lost = fates()["lost"]
    answered.set()
    assert not sender.flush(10) and sender.flush(10)
    assert 300 - lost == sum(map(len, endpoint.batches)) and 250 <= 300 - lost <= 262
    assert max(map(len, endpoint.batches)) <= 3 and fates() == {"exported": 300 - lost, "lost": lost}


def test_a_span_waits_no_longer_than_the_interval(fates: Callable[[], dict[str, int]]) -> None:
    """Without a flush."""
    sender = Sender(Endpoint().make, 0.05)
    sender.put(1, is_stream=True)
    until(lambda: fates() == {"exported": 1})


def test_threads_lose_no_span(fates: Callable[[], dict[str, int]]) -> None:
    """Eight threads put and flush at the same time; each span is exported once."""
    endpoint = Endpoint()
    sender = Sender(endpoint.make, 0.001)

    def work(first: int) -> None:
        for number in range(first, first + 300):
            sender.put(number, is_stream=True)
            if number % 100 == 0:
                sender.flush(10)

    threads = [threading.Thread(target=work, args=(1000 * each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sender.flush(10)
    sent = [number for batch in endpoint.batches for number in batch]
    assert len(sent) == len(set(sent)) == 2400 and fates() == {"exported": 2400}


def test_a_full_queue_drops_and_counts(fates: Callable[[], dict[str, int]]) -> None:
    """The endpoint hangs: `put` does not wait, further streams are lost, and flush is False at its time limit."""
    answered = threading.Event()
    endpoint = Endpoint(lambda: answered.wait(30))
    sender = Sender(endpoint.make, 0.0, queue_max=3)
    sender.put(0, is_stream=True)
    until(lambda: endpoint.batches)
    for number in range(1, 7):
        sender.put(number, is_stream=number != 6)
    assert fates() == {"waiting": 4, "lost": 2}
    assert not sender.flush(0.05)
    answered.set()
    assert sender.flush(10) and fates() == {"exported": 4, "lost": 2}


def refuse() -> bool:
    """Answer as an endpoint that refuses."""
    return False


def fail() -> bool:
    """Answer as an exporter with a fault."""
    raise OSError("a fault of the exporter")


@pytest.mark.parametrize("answer", [refuse, fail])
def test_a_failed_export_is_reported_once(answer: Callable[[], bool], fates: Callable[[], dict[str, int]]) -> None:
    """The flush after it is False, the next one is True; the thread goes on."""
    sender = Sender(Endpoint(answer).make, HOUR_S)
    for _ in range(2):
        sender.put(1, is_stream=True)
        assert not sender.flush(10) and sender.flush(10)
    assert fates() == {"failed": 2}


def test_a_forked_child_starts_anew(fates: Callable[[], dict[str, int]]) -> None:
    """It has an empty queue, a new exporter and a new thread, also if the parent's thread holds the lock at the fork."""
    endpoint = Endpoint()
    sender = Sender(endpoint.make, HOUR_S)
    sender.put(1, is_stream=True)
    with sender._changed:
        child = os.fork()
    if not child:
        is_empty = sender.flush(0) and not any(tally.counts().values())
        sender.put(2, is_stream=True)
        is_sent = sender.flush(10) and endpoint.batches == [[2]] and tally.counts()["exported"] == 1
        os._exit(0 if is_empty and is_sent and endpoint.made == 2 else 1)
    deadline = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == (child, 0)
    assert sender.flush(10) and endpoint.batches == [[1]] and fates() == {"exported": 1}
