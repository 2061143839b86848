"""Large bodies are converted in processes apart, with the same rows, refusals and faults as in this one."""

from __future__ import annotations

import gc
import gzip
import io
import os
import pathlib
import random
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import pytest

from bench.crash_pipelines.serve import children
from helpers.builders.json_otlp import json_of
from helpers.builders.spans import many_spans, native_span, request, steady_timeline
from helpers.servers.waiting import until
from legato_ingest.child_process import read, write
from legato_ingest.errors import BadRequest, ConversionEnded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.http import JSON
from legato_ingest.otlp.protobuf import message
from legato_ingest.otlp.signals import POINTS, SPANS
from legato_ingest.settings import load
from legato_ingest.write import conversion_process
from legato_ingest.write.body import Body
from legato_ingest.write.body_converter import BodyConverter, OnFault
from legato_ingest.write.committer import Committer
from legato_ingest.write.conversion import LARGE_BYTES
from legato_ingest.write.conversion_process import ConversionProcesses, _answer
from legato_ingest.write.receiver import Receiver

CONVERTER = BodyConverter.of(load(body_bytes_max=2**24))


def many_streams(count: int) -> bytes:
    """Return a body of streams of 1,000 chunks: 6,000 are two batches."""
    return many_spans(count, {"legato.stream.timeline": steady_timeline(1_000)}, random.Random(1))


def body_of(content: bytes, **given: Any) -> Body:
    """Return a body of spans in protobuf, unless something else is given."""
    return Body(
        **{"signal": SPANS, "content": content, "content_type": "application/x-protobuf", "encoding": "", "tenant": "acme", **given}
    )


def unexpected(error: Exception) -> None:
    """Fail: no item has a fault."""
    raise AssertionError from error


@pytest.fixture(scope="module")
def large() -> Body:
    """A body of two batches."""
    return body_of(many_streams(6_000))


@pytest.fixture
def processes() -> Iterator[ConversionProcesses]:
    """Processes, which end with the test."""
    made = ConversionProcesses(CONVERTER)
    yield made
    made.close()


def idle_pids(processes: ConversionProcesses) -> list[int]:
    """Return the ids of the processes that have no body."""
    return [process.pid for process in processes._idle]


def test_the_rows_are_those_of_a_thread(processes: ConversionProcesses, large: Body) -> None:
    """Of each encoding and signal, one body after another in one process."""
    small = request()
    native_span(small)
    packed = body_of(gzip.compress(small.SerializeToString()), encoding="gzip")
    for body in (
        large,
        packed,
        body_of(json_of(small), content_type=JSON),
        body_of(b"", signal=POINTS),
    ):
        assert list(processes.rows(body, unexpected)) == list(CONVERTER.rows(body, unexpected))
        assert len(idle_pids(processes)) == 1
    assert len(list(processes.rows(large, unexpected))) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (body_of(b"\xff"), 400),
        (body_of(b"no gzip", encoding="gzip"), 400),
        (body_of(b"", content_type="text/plain"), 415),
        (body_of(gzip.compress(bytes(2**24 + 1)), encoding="gzip"), 413),
    ],
    ids=["malformed", "not gzip", "type", "size"],
)
def test_a_refusal_is_that_of_a_thread(processes: ConversionProcesses, body: Body, status: int) -> None:
    """With its message and status. The process goes on."""
    with pytest.raises(BadRequest) as here:
        list(CONVERTER.rows(body, unexpected))
    with pytest.raises(BadRequest) as there:
        list(processes.rows(body, unexpected))
    assert str(there.value) == str(here.value) and there.value.status == here.value.status == status
    assert len(idle_pids(processes)) == 1


def test_a_body_that_is_given_up_leaves_nothing_to_the_next(processes: ConversionProcesses, large: Body) -> None:
    """The queue was full after its first batch, for example."""
    rows = processes.rows(large, unexpected)
    next(rows)
    del rows
    (pid,) = idle_pids(processes)
    other = body_of(many_streams(2))
    assert list(processes.rows(other, unexpected)) == list(CONVERTER.rows(other, unexpected)) and idle_pids(processes) == [pid]


def test_bodies_at_the_same_time_have_a_process_each(processes: ConversionProcesses, large: Body) -> None:
    """Their batches come in turn."""
    first, second = processes.rows(large, unexpected), processes.rows(large, unexpected)
    assert [batch == other for batch, other in zip(first, second, strict=True)] == [True] * 2
    assert len(idle_pids(processes)) == 2


def test_an_idle_process_that_was_killed_is_replaced(processes: ConversionProcesses, large: Body) -> None:
    """By the kernel for memory, for example: the next body is converted. SIGTERM and SIGINT of a terminal change nothing."""
    assert len(list(processes.rows(large, unexpected))) == 2
    (pid,) = idle_pids(processes)
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert len(list(processes.rows(large, unexpected))) == 2 and idle_pids(processes) == [pid]
    os.kill(pid, signal.SIGKILL)
    assert len(list(processes.rows(large, unexpected))) == 2 and idle_pids(processes) != [pid]


def test_a_process_that_ends_between_two_batches_is_an_error(processes: ConversionProcesses, large: Body) -> None:
    """No batch comes twice, and the next body is converted."""
    rows = processes.rows(large, unexpected)
    next(rows)
    for pid in children(os.getpid(), b"conversion_process"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConversionEnded, match="ended: exit status -9"):
        next(rows)
    assert not idle_pids(processes)
    assert len(list(processes.rows(large, unexpected))) == 2


class _Ends:
    """A converter that ends the process that unpickles it."""

    bytes_max = 1

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return os._exit, (3,)


def test_a_body_over_which_two_processes_end_is_an_error(processes: ConversionProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are converted."""
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_converter", _Ends())
        with pytest.raises(ConversionEnded, match="ended: exit status 3"):
            list(processes.rows(body_of(b""), unexpected))
    assert len(list(processes.rows(body_of(b""), unexpected))) == 1


def test_without_a_process_the_sender_repeats_the_request(processes: ConversionProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many processes on the host, for example."""

    def fail(module: str) -> None:
        raise BlockingIOError(module)

    monkeypatch.setattr(conversion_process, "start", fail)
    with pytest.raises(StoreUnavailable, match="cannot be started"):
        list(processes.rows(body_of(b""), unexpected))


def test_an_idle_process_ends_and_so_do_all_at_the_end(processes: ConversionProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that had a body when the end came."""
    monkeypatch.setattr(conversion_process, "_IDLE_S", 0.1)
    rows = processes.rows(body_of(b""), unexpected)
    next(rows)
    (process,) = processes._busy
    list(rows)
    until(lambda: not idle_pids(processes) and process.poll() == -signal.SIGKILL)
    monkeypatch.setattr(conversion_process, "_IDLE_S", 60.0)
    rows = processes.rows(body_of(b""), unexpected)
    next(rows)
    list(processes.rows(body_of(b""), unexpected))
    both = [*processes._idle, *processes._busy]
    processes.close()
    with pytest.raises(StoreUnavailable, match="stopping"):
        next(rows)
    assert [process.poll() for process in both] == [-signal.SIGKILL] * 2 and not idle_pids(processes)


def stopped_process(processes: ConversionProcesses) -> int:
    """Stop an idle process, and return its id."""
    list(processes.rows(body_of(b""), unexpected))
    (pid,) = idle_pids(processes)
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_process_that_hangs_is_ended_and_its_body_is_not_tried_again(
    processes: ConversionProcesses, large: Body, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request has waited for long, and others wait for its place."""
    stopped_process(processes)
    with monkeypatch.context() as patch:
        patch.setattr(conversion_process, "_ANSWER_S", 0.5)
        with pytest.raises(ConversionEnded, match="exit status -9") as raised:
            list(processes.rows(large, unexpected))
    assert raised.value.is_late
    assert not idle_pids(processes) and len(list(processes.rows(large, unexpected))) == 2


def test_the_end_waits_for_no_process_that_hangs(processes: ConversionProcesses, large: Body) -> None:
    """A request in a thread of `legato serve` waits for the process; further bodies are refused."""
    pid = stopped_process(processes)
    with ThreadPoolExecutor(1) as thread:
        reply = thread.submit(lambda: list(processes.rows(large, unexpected)))
        until(lambda: processes._busy)
        processes.close()
        assert isinstance(reply.exception(timeout=30), StoreUnavailable)
    assert not pathlib.Path(f"/proc/{pid}").exists() and not processes._busy


def test_two_idle_processes_that_were_killed_are_no_trials(processes: ConversionProcesses, large: Body) -> None:
    """Of a body that has done nothing to them."""
    rows = processes.rows(body_of(b""), unexpected)
    next(rows)
    list(processes.rows(body_of(b""), unexpected))
    list(rows)
    pids = idle_pids(processes)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert len(pids) == 2 and len(list(processes.rows(large, unexpected))) == 2


def test_without_another_thread_a_body_is_converted(processes: ConversionProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends at once, because nothing would end it later."""
    started, kinds = threading.Timer.start, list[object]()

    def start(self: threading.Timer) -> None:
        kinds.append(self.function)
        if self.function == processes._end_if_idle:
            raise RuntimeError("can't start new thread")
        started(self)

    monkeypatch.setattr(threading.Timer, "start", start)
    assert len(list(processes.rows(body_of(b""), unexpected))) == 1
    assert processes._end_if_idle in kinds and not idle_pids(processes) and not processes._busy


def test_without_a_thread_for_the_deadline_the_sender_repeats_the_request(
    processes: ConversionProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process could hang for ever. Threads and processes of a user have a limit together."""

    def start(self: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", start)
    with pytest.raises(StoreUnavailable, match="new thread"):
        list(processes.rows(body_of(b""), unexpected))
    assert not idle_pids(processes) and not processes._busy


def test_a_small_pipe_is_enough(processes: ConversionProcesses, large: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel limits the size of all pipes of a user together."""

    def refused(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("legato_ingest.child_process.fcntl.fcntl", refused)
    assert len(list(processes.rows(large, unexpected))) == 2


def test_an_error_keeps_no_body(processes: ConversionProcesses) -> None:
    """Without the garbage collector: the start of `legato serve` keeps what it finds then for ever."""
    gc.disable()
    try:
        content = b"\xff" * 1_000
        before = sys.getrefcount(content)
        with suppress(BadRequest):
            list(processes.rows(body_of(content), unexpected))
        assert sys.getrefcount(content) == before
    finally:
        gc.enable()


@pytest.mark.parametrize(("size", "large"), [(LARGE_BYTES, 0), (LARGE_BYTES + 1, 1)], ids=["small", "large"])
def test_the_log_is_read_with_the_same_limit(size: int, large: int) -> None:
    """A body that ended the process would end each start of `legato serve` if a thread converted it."""
    asked = list[Body]()

    def rows_of_large(body: Body, on_fault: OnFault) -> Iterator[Batch]:
        asked.append(body)
        yield Batch()

    # One field that is not known.
    content = message(2, bytes(size - 5))
    receiver = Receiver(load(), cast(Committer, None), Metrics(), rows_of_large)
    assert len(content) == size and len(list(receiver.recovered(body_of(content)))) == 1 and len(asked) == large


class _Faulty:
    """Converts a body with faults of three items, and fails then."""

    def rows(self, body: Body, on_fault: OnFault) -> Iterator[Batch]:
        """Yield one batch."""
        for error in (KeyError("a"), KeyError("b"), _Unpicklable("c", 1)):
            try:
                raise error
            except Exception as fault:
                on_fault(fault)
        yield Batch(spans=3)
        raise MemoryError


class _Unpicklable(Exception):
    def __init__(self, name: str, number: int) -> None:
        super().__init__(name)


def test_faults_and_errors_name_the_lines_where_they_were_raised() -> None:
    """A type is counted as often as it came. What cannot be pickled arrives as text."""
    messages, answers = io.BytesIO(), io.BytesIO()
    for sent in ((_Faulty(), body_of(b"")), None, None):
        write(messages, sent)
    messages.seek(0)
    _answer(messages, answers)
    answers.seek(0)
    first, second, end = (read(answers) for _ in range(3))
    assert first.batch.spans == 3 and first.error is None and list(map(type, first.faults)) == [KeyError, KeyError, RuntimeError]
    assert all("raise error" in "".join((str(fault), *getattr(fault, "__notes__", ()))) for fault in first.faults)
    assert second.batch is None and type(second.error) is MemoryError and not second.faults
    assert end.batch is None and end.error is None
