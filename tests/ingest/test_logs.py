"""The log of `legato serve`: a reader of standard error that stops, and a message that repeats itself, delay nothing and are counted."""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections import Counter

import pytest

from helpers.builders.hostile import HOSTILE, unseen
from legato_ingest import logs
from legato_ingest.logs import written_in_background

LOG = logging.getLogger("legato")


def test_lines_have_a_time_a_level_and_the_complete_text() -> None:
    out = io.StringIO()
    with written_in_background(lambda _: None, out):
        LOG.warning("%s: the store did not respond", "rollup")
        try:
            raise ValueError("broken")
        except ValueError:
            LOG.exception("a request failed")
    first, second, *traceback = out.getvalue().splitlines()
    assert first.endswith(" WARNING rollup: the store did not respond") and second.endswith(" ERROR a request failed")
    assert traceback[0].startswith("  Traceback") and traceback[-1] == "  ValueError: broken"


def test_a_hostile_text_forges_no_line_and_steers_no_terminal() -> None:
    """Neither in a message, nor in an exception: only a record begins a line, and nothing is unseen."""
    out = io.StringIO()
    with written_in_background(lambda _: None, out):
        LOG.warning("a sender named %s", f"x{HOSTILE}\n2026-01-01 00:00:00,000 ERROR forged")
        try:
            raise ValueError(f"{HOSTILE}\n2026-01-01 00:00:00,000 ERROR forged")
        except ValueError:
            LOG.exception("a request failed", stack_info=True)
    lines = out.getvalue().splitlines()
    assert not unseen(out.getvalue()) and "\\u202e" in lines[0] and "ERROR forged" in lines[0]
    assert len([line for line in lines if not line.startswith("  ")]) == 2 and "  2026-01-01 00:00:00,000 ERROR forged" in lines


def test_a_log_that_nothing_reads_blocks_neither_its_callers_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_CLOSE_S", 0.1)
    left_out: Counter[str] = Counter()
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "w", encoding="utf-8") as pipe:
        started = time.monotonic()
        with written_in_background(lambda reason: left_out.update([reason]), pipe):
            for number in range(3_000):
                LOG.warning(f"message {number} {'x' * 100}")
            (writer,) = (each for each in threading.enumerate() if each.name == "legato-log-lines")
        assert time.monotonic() - started < 10
        # A pipe holds 64 KiB, the queue 1,000 records, and all others are counted.
        assert set(left_out) == {"queue_full"} and 1_000 < left_out["queue_full"] < 2_000
        draining = threading.Thread(target=reader.read)
        draining.start()
        writer.join(10)
        assert not writer.is_alive()
        pipe.close()
        draining.join()


def test_a_repeated_message_is_written_ten_times_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: Counter[str] = Counter()
    out = io.StringIO()
    now_s = 100.0
    monkeypatch.setattr("legato_ingest.logs.time.monotonic", lambda: now_s)
    with written_in_background(lambda reason: left_out.update([reason]), out):
        for number in range(485):
            LOG.warning("not stored, the sender has to retry: %s", f"reason {number}")
        LOG.warning("another message")
        now_s += 10
        LOG.warning("not stored, the sender has to retry: %s", "still")
        LOG.warning("not stored, the sender has to retry: %s", "again")
    lines = out.getvalue().splitlines()
    assert left_out == {"repeated": 475} and len(lines) == 13
    assert lines[11].endswith("retry: still (and 475 more like this were left out)") and lines[12].endswith("retry: again")
