"""The process that judges: the same rows as in this process, again after it was killed, and never longer than its parent."""

from __future__ import annotations

import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import IO, Any

import pytest

from helpers.builders.judging import put_all
from legato_ingest.attribution import judging_process
from legato_ingest.attribution.judging import Judged, judged_rows
from legato_ingest.attribution.judging_process import JudgingProcess
from legato_ingest.attribution.load.due import due_by_receipt
from legato_ingest.attribution.load.evidence import load_evidence
from legato_ingest.attribution.load.streams import Most, slices_of, streams_in
from legato_ingest.attribution.model.judge import Evidence, Thresholds
from legato_ingest.child_process import read
from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage import Store

JUDGED_AT_NS = 1_700_000_000 * 10**9
THRESHOLDS = Thresholds(250, 0)


@pytest.fixture
def judging() -> Iterator[JudgingProcess]:
    """A process, not yet started."""
    process = JudgingProcess()
    yield process
    process.close()


@pytest.fixture
def evidence(store: Store) -> list[Evidence]:
    """The evidence about some recorded streams."""
    put_all(store)
    gap_us = THRESHOLDS.gap_ns // 1000
    most = Most(1_000, 2**29)
    parts = [part for due in due_by_receipt(store, 0, 2**42) for part in slices_of(store, due, gap_us, most)]
    return [each for part in parts for streams in streams_in(store, part, gap_us, most) for each in load_evidence(store, streams)]


def pid_of(judging: JudgingProcess) -> int:
    """Return the id of the running process."""
    assert judging._process is not None
    return judging._process.pid


def test_the_rows_are_those_of_this_process(judging: JudgingProcess, evidence: list[Evidence]) -> None:
    """Also of several messages, in the order of the groups."""
    here = judged_rows(evidence, THRESHOLDS, JUDGED_AT_NS)
    assert evidence and here.streams and here.verdicts.num_rows > 0
    assert judging(evidence, THRESHOLDS, JUDGED_AT_NS) == here
    one = judged_rows(evidence[:1], THRESHOLDS, JUDGED_AT_NS)
    many = [replace(evidence[0]) for _ in range(1_200)]
    assert judging(many, THRESHOLDS, JUDGED_AT_NS) == Judged.joined([one] * 1_200)
    assert judging([], THRESHOLDS, JUDGED_AT_NS) == Judged.joined([])


def test_an_error_is_of_its_group(judging: JudgingProcess, evidence: list[Evidence]) -> None:
    """The other groups of the same message are judged."""
    none: Any = None
    broken = replace(evidence[0], streams=[none])
    judged = judging([evidence[0], broken, evidence[0]], THRESHOLDS, JUDGED_AT_NS)
    (error,) = judged.errors
    assert not isinstance(error, EOFError)
    assert replace(judged, errors=()) == judged_rows([evidence[0], evidence[0]], THRESHOLDS, JUDGED_AT_NS)


def test_a_killed_process_is_started_again(judging: JudgingProcess, evidence: list[Evidence]) -> None:
    """Between two calls, and during one: the parent finds a closed pipe and repeats the message once."""
    first = judging(evidence, THRESHOLDS, JUDGED_AT_NS)
    killed = pid_of(judging)
    os.kill(killed, signal.SIGKILL)
    assert judging(evidence, THRESHOLDS, JUDGED_AT_NS) == first and pid_of(judging) != killed
    # The parent may also find that it has ended before it writes.
    ended = judging._process
    assert ended is not None and ended.stdout is not None
    ended.kill()
    ended.wait()
    assert judging(evidence, THRESHOLDS, JUDGED_AT_NS) == first and ended.stdout.closed
    # It stops as for a terminal's Ctrl-C only with its parent.
    os.kill(pid_of(judging), signal.SIGINT)
    os.kill(pid_of(judging), signal.SIGTERM)
    unharmed = pid_of(judging)
    assert judging(evidence, THRESHOLDS, JUDGED_AT_NS) == first and pid_of(judging) == unharmed


def test_a_process_that_is_killed_between_messages_loses_none(
    judging: JudgingProcess, evidence: list[Evidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after the second of several answers; the others are asked for again, and no rows come twice."""
    monkeypatch.setattr("legato_ingest.attribution.judging_process._STREAMS_MAX", 1)
    answers = list[int]()

    def killing(pipe: IO[bytes]) -> Any:
        if len(answers) == 2:
            os.kill(pid_of(judging), signal.SIGKILL)
        answers.append(1)
        return read(pipe)

    monkeypatch.setattr(judging_process, "read", killing)
    many = [replace(evidence[0]) for _ in range(60)]
    assert judging(many, THRESHOLDS, JUDGED_AT_NS) == judged_rows(many, THRESHOLDS, JUDGED_AT_NS)


def test_an_error_while_answers_are_read_leaves_none_for_the_next_evidence(
    judging: JudgingProcess, evidence: list[Evidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a lack of memory in this process, while the other one has judged everything."""
    monkeypatch.setattr("legato_ingest.attribution.judging_process._STREAMS_MAX", 1)
    answers = list[int]()

    def failing(pipe: IO[bytes]) -> Any:
        answers.append(1)
        if len(answers) == 3:
            raise MemoryError
        return read(pipe)

    monkeypatch.setattr(judging_process, "read", failing)
    with pytest.raises(MemoryError):
        judging([evidence[0]] * 60, THRESHOLDS, JUDGED_AT_NS)
    assert judging(evidence[-1:], THRESHOLDS, JUDGED_AT_NS) == judged_rows(evidence[-1:], THRESHOLDS, JUDGED_AT_NS)


def test_evidence_that_cannot_be_sent_is_an_error(judging: JudgingProcess, evidence: list[Evidence]) -> None:
    """Nothing waits for its answer, and the next evidence is judged."""
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        judging([replace(evidence[0], stored_stalls=lambda: None)], THRESHOLDS, JUDGED_AT_NS)  # type: ignore[arg-type]
    assert judging(evidence, THRESHOLDS, JUDGED_AT_NS) == judged_rows(evidence, THRESHOLDS, JUDGED_AT_NS)


def test_a_message_that_ends_the_process_twice_is_an_error(
    judging: JudgingProcess, evidence: list[Evidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perhaps it takes too much memory. The next message is judged."""
    half = "import sys; sys.stdin.buffer.read(1000); sys.stdout.buffer.write(b'\\x80\\x05\\x95\\x63half')"
    with monkeypatch.context() as patch:
        for script in ("import sys; sys.stdin.buffer.read(1000)", half):
            patch.setattr("legato_ingest.attribution.judging_process.start", partial(_ending, script))
            judged = judging(evidence, THRESHOLDS, JUDGED_AT_NS)
            assert judged.streams == judged.verdicts.num_rows == 0
            assert [str(error)[:43] for error in judged.errors] == ["the process that judges streams ended twice"] * len(evidence)
    assert judging(evidence, THRESHOLDS, JUDGED_AT_NS) == judged_rows(evidence, THRESHOLDS, JUDGED_AT_NS)


def test_streams_that_end_the_process_keep_no_other_tenant_from_its_verdicts(judging: JudgingProcess, evidence: list[Evidence]) -> None:
    """Neither in another group, nor in the group of the streams without an engine, which is of all tenants."""
    (group,) = evidence
    honest = [replace(stream, tenant="honest", engine_id="") for stream in group.streams]
    hostile = [replace(stream, tenant="hostile", judged=_ENDS_THE_PROCESS) for stream in honest]
    mixed = Evidence([*honest, *hostile, *honest])
    judged = judging([group, mixed, group], THRESHOLDS, JUDGED_AT_NS)
    assert len(judged.errors) == 1 and isinstance(judged.errors[0], EOFError)
    expected = judged_rows([group, Evidence([*honest, *honest]), group], THRESHOLDS, JUDGED_AT_NS)
    assert expected.verdicts.num_rows and replace(judged, errors=()) == expected


def test_a_process_that_cannot_be_started_is_no_fault_of_streams(
    judging: JudgingProcess, evidence: list[Evidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails as a whole and is repeated; no stream is left out."""
    with monkeypatch.context() as patch:
        patch.setattr("legato_ingest.attribution.judging_process.start", partial(_ending, "", python="/no/such/python"))
        with pytest.raises(StoreUnavailable, match="cannot be started"):
            judging(evidence, THRESHOLDS, JUDGED_AT_NS)
    assert judging(evidence, THRESHOLDS, JUDGED_AT_NS) == judged_rows(evidence, THRESHOLDS, JUDGED_AT_NS)


def test_the_process_ends_with_its_parent(tmp_path: pathlib.Path) -> None:
    """Also when the parent is killed and cannot say so."""
    script = (
        "import pathlib, sys, time\n"
        "from legato_ingest.child_process import start\n"
        "started = start('legato_ingest.attribution.judging_process')\n"
        "pathlib.Path(sys.argv[1]).write_text(str(started.pid))\n"
        "time.sleep(60)\n"
    )
    path = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", script, str(path)])
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text(encoding="utf-8")) and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    child = pathlib.Path("/proc", path.read_text(encoding="utf-8"), "stat")
    while child.exists() and child.read_text(encoding="utf-8").split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert time.monotonic() < deadline


def _ending(script: str, module: str, python: str = sys.executable) -> subprocess.Popen[bytes]:
    return subprocess.Popen([python, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class _EndsTheProcess:
    """The chunks of a stream that ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return os._exit, (137,)


_ENDS_THE_PROCESS: Any = _EndsTheProcess()
