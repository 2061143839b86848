"""Recordings: reading them, and cutting them without losing their end."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from demo.recording import DONE_BYTES, RECORDINGS, Recording, Send, Stream, engines_of, load, two_sided_streams


def _stream(content: tuple[Send, ...], *, start_us: int = 0, cancel_us: int | None = None) -> Stream:
    return Stream(
        "x-1", start_us, (90, 249), content, ((content[-1][0] + 5, 233), (content[-1][0] + 9, DONE_BYTES)), 10, len(content), cancel_us
    )


@pytest.mark.parametrize("name", ["calm", "kv", "net"])
def test_every_recorded_stream_is_complete(name: str) -> None:
    """Each stream of the demo's own recordings has content, a tail, and at most as many frames as it had tokens."""
    recording = load(name)
    assert recording.streams[0].start_us == 0
    for stream in recording.streams:
        assert stream.done and stream.tail[1][1] == DONE_BYTES
        assert 0 < len(stream.content) <= stream.completion_tokens
        assert [at for at, _ in stream.content] == sorted(at for at, _ in stream.content)


def test_the_steps_end_every_stream_of_a_cut_recording() -> None:
    """A request that runs at the cut ends in the last step before its last frame, with its recorded queue time. None ends twice."""
    whole = load("kv")
    cut = whole.first(20.0)
    assert 0 < len(cut.steps) < len(whole.steps) and cut.steps[-1].at_us <= 20_000_000
    ended = [each.key for step in cut.steps for each in step.finished]
    assert len(set(ended)) == len(ended) and set(ended) >= {stream.key for stream in cut.streams}
    queued_s = {each.key: each.queued_s for step in whole.steps for each in step.finished}
    assert {each.key: each.queued_s for step in cut.steps for each in step.finished if each.key in queued_s} == {
        key: queued_s[key] for key in ended
    }


def test_kv_has_the_stalls_that_the_demo_shows() -> None:
    """The default recording has more than 300 stalls, the longest over 10 s."""
    gaps = [gap for stream in load("kv").streams for gap in stream.gaps_us()]
    assert sum(gap >= 250_000 for gap in gaps) > 300
    assert max(gaps) > 10_000_000


def test_a_cut_stream_ends_with_its_tail_at_the_cut() -> None:
    """Frames after the cut are removed, the tail follows the last remaining frame, and a stream without frames is omitted."""
    running = _stream(((100, 210), (600_000, 211), (1_400_000, 212)))
    late = _stream(((900_000, 210), (950_000, 211)), start_us=500_000)
    (cut,) = Recording("x", (running, late)).first(1.0).streams
    assert cut.content == ((100, 210), (600_000, 211))
    assert cut.tail == ((600_000, 233), (600_000, DONE_BYTES))
    assert cut.completion_tokens == 2


def test_gaps_end_at_the_clients_cancel() -> None:
    """Frames that the server sent after the client's cancel add no gaps."""
    assert _stream(((100, 210), (600, 211), (900, 212)), cancel_us=700).gaps_us() == [500]


def test_an_unknown_recording_is_an_error_with_the_valid_names() -> None:
    """The error for a misspelt name lists the valid names."""
    with pytest.raises(FileNotFoundError, match="expected one of calm, kv, net"):
        load("cv")


def test_each_engine_of_a_run_has_its_own_streams_and_steps(tmp_path: pathlib.Path) -> None:
    """The files of two engines have suffixes; together they have no steps, because a stream's steps are those of one engine."""
    run = tmp_path / "two"
    run.mkdir()
    for name, engine in (("calm", "_e1"), ("kv", "_e10")):
        for kind in ("server", "steps", "client"):
            shutil.copy(RECORDINGS / name / f"{kind}.jsonl.gz", run / f"{kind}{engine}.jsonl.gz")
    assert engines_of(str(run)) == ("_e1", "_e10") and engines_of("kv") == ("",)
    for name, engine in (("calm", "_e1"), ("kv", "_e10")):
        alone, part = load(name), load(str(run), engine)
        assert part.steps and (len(part.steps), len(part.streams)) == (len(alone.steps), len(alone.streams))
        assert len(two_sided_streams(str(run), engine)) == len(two_sided_streams(name))
    assert not load(str(run)).steps and len(load(str(run)).streams) == len(load("calm").streams) + len(load("kv").streams)
