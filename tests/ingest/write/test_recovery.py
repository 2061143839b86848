"""Requests of the write-ahead log that cannot be converted at the start: the process starts, and none is lost."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from helpers.dashboards.tables import streams
from helpers.servers.committing import PATIENCE_S, logging_to, pending, span_rows, spread_spans
from helpers.servers.otlp import PROTOBUF
from legato_ingest.errors import ConversionEnded, StoreUnavailable
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import SPANS
from legato_ingest.storage import Store
from legato_ingest.storage.wal import ASIDE, Payload, WriteAheadLog
from legato_ingest.write import recovery
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.body_converter import BodyConverter, OnFault


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int) -> None:
    """Let the conversion of the first body fail so many times, after its first batch."""
    converted, left = BodyConverter.rows_of, [times]

    def rows_of(self: BodyConverter, body: Body, content: bytes, on_fault: OnFault) -> Iterator[Batch]:
        yield from converted(self, body, content, on_fault)
        if left[0]:
            left[0] -= 1
            raise error

    monkeypatch.setattr(BodyConverter, "rows_of", rows_of)
    monkeypatch.setattr(recovery, "_TRIAL_PAUSE_S", 0.01)


@pytest.fixture
def log(tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of a log with two requests of five streams."""
    written = WriteAheadLog(tmp_path)
    written.append([Body(SPANS, spread_spans(5, seed).SerializeToString(), PROTOBUF, "", "").logged() for seed in (1, 2)])
    written.close()
    return tmp_path


@pytest.mark.parametrize(
    "error", [MemoryError(), BlockingIOError(11, "no processes"), ConversionEnded("killed"), StoreUnavailable("no process")], ids=repr
)
def test_a_failure_of_the_host_is_tried_again(store: Store, log: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Twice. Rows that were queued before each failure are stored once."""
    failing(monkeypatch, error, 2)
    with logging_to(log, store, recovers=True):
        pass
    assert len(streams(store)) == 10 and store.select("SELECT count() FROM stream_revs") == [(10,)] and not pending(log)


@pytest.mark.parametrize(
    ("error", "times"),
    [(MemoryError(), 3), (KeyError("of another version"), 1), (ConversionEnded("two minutes", is_late=True), 1)],
    ids=["memory", "fault", "late"],
)
def test_a_failure_that_stays_keeps_no_process_from_its_start(
    store: Store, log: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Exception, times: int
) -> None:
    """The request is set aside and counted; the next process stores it."""
    with monkeypatch.context() as patch:
        failing(patch, error, times)
        with logging_to(log, store, recovers=True) as committer:
            assert committer._metrics.errors.labels("set_aside", type(error).__name__)._value.get() == 1
    assert len(streams(store)) == 10 and [segment for segment, _ in pending(log)] == [ASIDE]
    with logging_to(log, store, recovers=True):
        pass
    assert store.select("SELECT count() FROM stream_revs") == [(10,)] and not pending(log)


def test_without_memory_to_set_a_request_aside_the_process_starts(store: Store, log: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request stays in its segment, and the next process stores it."""

    def no_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        failing(patch, KeyError("of another version"), 1)
        patch.setattr(WriteAheadLog, "set_aside", no_memory)
        with logging_to(log, store, recovers=True):
            pass
    assert len(streams(store)) == 10 and [segment for segment, _ in pending(log)] != [ASIDE] and pending(log)
    with logging_to(log, store, recovers=True):
        pass
    assert store.select("SELECT count() FROM stream_revs") == [(10,)] and not pending(log)


@pytest.mark.parametrize("is_readable", [False, True])
@pytest.mark.parametrize("error", [MemoryError(), StoreUnavailable("the disk is full")], ids=repr)
def test_what_could_not_be_set_aside_is_set_aside_later(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_readable: bool
) -> None:
    """It kept its segment of the log until the next start, and the other segment grew with all that was sent."""
    written = WriteAheadLog(tmp_path)
    written.append([Body(SPANS, spread_spans(5, 1).SerializeToString(), PROTOBUF, "", "").logged() if is_readable else b"not a request\n1"])
    written.close()
    set_aside, is_full = WriteAheadLog.set_aside, [True]

    def refusing(self: WriteAheadLog, segment: int, payload: Payload) -> None:
        if is_full[0]:
            raise error
        set_aside(self, segment, payload)

    monkeypatch.setattr(WriteAheadLog, "set_aside", refusing)
    monkeypatch.setattr("legato_ingest.write.outcomes._LEFT_S", 0.0)
    failing(monkeypatch, KeyError("of another version"), int(is_readable))
    with logging_to(tmp_path, store, recovers=True) as committer:
        monkeypatch.setattr(type(committer._lanes), "bytes_max", 0)
        for number in range(6):
            is_full[0] = number < 3
            sent = spread_spans(1, 10 + number)
            entry = Entry(Body(SPANS, sent.SerializeToString(), PROTOBUF, "", ""))
            committer.submit(span_rows(sent), entry).result(PATIENCE_S)
            committer.finish(entry)
            committer.settle()
            assert (ASIDE in dict(pending(tmp_path))) == (number >= 3)
        assert committer._metrics.registry.get_sample_value("legato_queue_bytes") == 0
    assert [segment for segment, _ in pending(tmp_path)] == [ASIDE]
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert len(streams(store)) == 6 + 5 * is_readable
