"""SGLang's lines of finished requests in real files: each is emitted once, for any changes of the files, and no prompt is decoded."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.engine_sources import NOW
from helpers.platform.examples import examples
from helpers.platform.sglang import ANSWER, PROMPT, STOP
from helpers.platform.sglang import RequestFolder as World
from helpers.platform.sglang import request_line as line
from helpers.servers.publisher import reachable
from legato_gpu_agent.agent.otlp_spans import steps_request
from legato_gpu_agent.agent.step_buffer import StepBuffer
from legato_gpu_agent.collectors import sglang_requests
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.decode_errors import DecodeError
from legato_gpu_agent.collectors.forward_pass import ForwardPasses
from legato_gpu_agent.collectors.sglang_requests import LINE_BYTES_MAX, RequestFiles
from legato_gpu_agent.plugin.model import Engine, FinishedRequest, Step
from legato_gpu_agent.plugin.protocol import Datagram


@pytest.fixture
def world(tmp_path: pathlib.Path) -> World:
    """A world with a folder that was read once, with an empty file."""
    each = World(tmp_path)
    each.append(b"")
    assert each.round() == {}
    return each


def test_a_line_is_a_finished_request(world: World) -> None:
    """With the client's id, its waiting, prefill and decode times, and no step, because the line has none."""
    world.append(line("chatcmpl-7"))
    assert world.round() == {"taken": 1}
    assert world.emitted == [
        Datagram(
            Engine("e", NOW),
            finished=(
                FinishedRequest(
                    step=0,
                    response_id="chatcmpl-7",
                    reason="stop",
                    preemptions=2,
                    prompt_tokens=1_200,
                    output_tokens=311,
                    queued_us=42_500,
                    prefill_us=250_000,
                    decode_us=9_250_000,
                ),
            ),
        )
    ]
    assert world.round() == {"taken": 1} and len(world.emitted) == 1


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"finish_reason": {"type": "abort", "message": PROMPT, "status_code": 499, "err_type": None}}, {"reason": "abort"}),
        ({"finish_reason": {"type": "length", "length": 40}}, {"reason": "length"}),
        ({"finish_reason": "stop"}, {"reason": "stop"}),
        ({"finish_reason": None}, {"reason": ""}),
        ({"finish_reason": {}}, {"reason": ""}),
        ({"completion_tokens": ...}, {"output_tokens": 0}),
        ({"num_retractions": None, "prompt_tokens": ...}, {"preemptions": 0, "prompt_tokens": 0}),
        ({"queue_time": ..., "forward_entry_time": ..., "first_token_latency": ...}, {"queued_us": 0, "prefill_us": 0, "decode_us": 0}),
        ({"queue_time": -0.5, "prefill_finished_time": 5.0, "e2e_latency": 0.25}, {"queued_us": 0, "prefill_us": 0, "decode_us": 0}),
        ({"queue_time": 1e9, "e2e_latency": 1e300}, {"queued_us": 0, "decode_us": 0}),
        ({"queue_time": 3}, {"queued_us": 3_000_000}),
        ({"id": "é" * 300}, {"response_id": "é" * 255}),
    ],
)
def test_missing_values_are_unknown(world: World, changed: dict[str, Any], expected: dict[str, Any]) -> None:
    """Without --enable-metrics there are no times; an implausible time is unknown."""
    world.append(line(**changed))
    world.round()
    (request,) = world.requests
    assert {name: getattr(request, name) for name in expected} == expected


def test_no_prompt_is_decoded(world: World) -> None:
    """Neither prompts nor responses are in emitted records or in the collector; the decoder's types have no field for them."""
    world.append(line() + line("r2", text=PROMPT, output_ids=[1, 2, 3], input_token_logprobs=[[-1.5, 7, PROMPT]]) + line("r3")[:300])
    world.round()
    held = list(reachable([world.files, world.emitted]))
    assert world.ids == ["r1", "r2"] and "r1" in held
    for text in (PROMPT, ANSWER, STOP):
        assert not [each for each in held if isinstance(each, str) and text in each]
        assert not [each for each in held if isinstance(each, bytes | bytearray) and text.encode() in each]
    fields = set(sglang_requests._Line.__struct_fields__) | set(sglang_requests._Reason.__struct_fields__)
    assert fields == {
        *("id", "finish_reason", "prompt_tokens", "completion_tokens", "num_retractions", "queue_time", "type"),
        *("forward_entry_time", "prefill_finished_time", "first_token_latency", "e2e_latency"),
    }


def test_earlier_lines_are_not_emitted(tmp_path: pathlib.Path) -> None:
    """Reading starts at the end of the files; within a line, at the next one."""
    world = World(tmp_path)
    world.append(line("old"), hour=13)
    world.append(line("older") + line("half")[:40])
    assert world.round() == {}
    world.append(line("half")[40:] + line("new"))
    world.append(line("late"), hour=13)
    assert world.round() == {"taken": 2} and world.ids == ["late", "new"]


def test_an_incomplete_line_is_read_later(world: World) -> None:
    """Also byte by byte, and emitted once."""
    whole = line("r1")
    for at in range(0, len(whole), 97):
        assert not world.ids
        world.append(whole[at : at + 97])
        world.round()
    assert world.ids == ["r1"] and world.round() == {"taken": 1}


def test_a_new_hour_is_a_new_file(world: World) -> None:
    """It is read from its start, after the rest of the previous one."""
    world.append(line("r1") + line("r2")[:50])
    world.round()
    world.append(line("r2")[50:])
    world.append(line("r3") + line("r4"), hour=15)
    world.append(line("r5"), hour=16)
    world.round()
    assert world.ids == ["r1", "r2", "r3", "r4", "r5"]
    for hour in range(17, 24):
        world.append(line(f"h{hour}"), hour=hour)
        world.round()
    assert world.ids[5:] == [f"h{hour}" for hour in range(17, 24)] and len(world.files._positions) == 3


def test_removed_files_are_forgotten(world: World) -> None:
    """A later file of the same name is new; an old one that is among the newest again is not."""
    world.append(line("r1"), hour=11)
    for hour in (15, 16, 17):
        world.append(line(f"h{hour}"), hour=hour)
    world.round()
    assert world.ids == ["h15", "h16", "h17"]
    world.file(17).unlink()
    world.file(16).unlink()
    world.round()
    world.append(line("again"), hour=14)
    world.append(line("once more"), hour=18)
    world.round()
    assert world.ids[3:] == ["again", "once more"]


def test_a_truncated_or_replaced_file_is_read_from_its_start(world: World) -> None:
    """The same file or another one of its name."""
    world.append(line("r1") + line("r2")[:90])
    world.round()
    world.file().write_bytes(b'{"id": "r3"}\n')
    world.round()
    other = world.folder / "other"
    other.write_bytes(line("r4") + line("r5") + line("r6"))
    other.rename(world.file())
    world.round()
    assert world.ids == ["r1", "r3", "r4", "r5", "r6"]


BAD = {
    "nothing": b"\n",
    "no object": b"[1, 2]\n",
    "no JSON": b"{id: r}\n",
    "cut": line()[:-9] + b"\n",
    "no id": line(id=...),
    "an empty id": line(""),
    "an id that is none": line(id=7),
    "fewer than none": line(prompt_tokens=-1),
    "more than can be": line(completion_tokens=2**40),
    "half a token": line(prompt_tokens=1.5),
    "a time as text": line(queue_time="0.5"),
    "no number of JSON": line(queue_time=float("nan")),
    "no text": line("xyz").replace(b'"xyz"', b'"\xff\xfe"'),
    "half a character": line("xyz").replace(b'"xyz"', b'"\\ud800"'),
    "deep": b'{"id": "r", "x": ' + b"[" * 60_000 + b"\n",
    "two lines in one": line()[:-1] + line(),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_an_invalid_line_is_skipped(world: World, bad: bytes) -> None:
    """And counted; the others are emitted."""
    world.append(line("before") + bad + line("after"))
    assert world.round() == {"taken": 2, "bad": 1} and world.ids == ["before", "after"]


def test_only_invalid_lines_are_an_error(world: World) -> None:
    """It names their number, the reason and the expected lines, and quotes nothing; any good line makes the round successful."""
    start = f"{world.folder}: no lines could be decoded"
    world.append(line(id=...) + line(finish_reason=[PROMPT]))
    with pytest.raises(DecodeError) as failed:
        world.round()
    why = "Expected `str | object | null`, got `array` - at `$.finish_reason`; expected lines that SGLang writes for finished requests"
    assert str(failed.value) == f"{start} (2 received); the last: {why}"
    world.append(line("") + line(PROMPT).replace(b"the prompt", b"\xff\xfe"))
    with pytest.raises(DecodeError, match=r"\(2 received\); the last: UnicodeDecodeError; expected lines"):
        world.round()
    world.append(line("x" * LINE_BYTES_MAX))
    with pytest.raises(DecodeError, match=r"\(1 received\); the last: a line of more than 8 MiB; expected lines"):
        world.round()
    assert world.round() == {"bad": 5}
    world.append(b"\n" + line("r1") + line(""))
    assert world.round() == {"bad": 7, "taken": 1} and world.ids == ["r1"]


def test_a_huge_line_is_skipped(world: World) -> None:
    """In bounded memory, complete or growing from round to round; one of the maximum length is emitted."""
    room = LINE_BYTES_MAX - len(line("long", text=""))
    world.append(line("long", text="x" * room) + line("huge", text="x" * 2 * LINE_BYTES_MAX) + line("r1"))
    tracemalloc.start()
    assert world.round() == {"taken": 2, "bad": 1}
    for _ in range(5):
        world.append(b'{"text": "' + b"y" * 3_000_000)
        with contextlib.suppress(DecodeError):
            world.round()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    world.append(b'"}\n' + line("r2"))
    assert world.round() == {"taken": 3, "bad": 2} and world.ids == ["long", "r1", "r2"]
    assert most < 4 * LINE_BYTES_MAX


def test_a_round_is_bounded(world: World) -> None:
    """The rest is read in the next one, completely."""
    world.append(b"".join(line(f"r{number}", request_parameters="") for number in range(20_000)))
    rounds = 0
    while len(world.ids) < 20_000:
        world.round()
        rounds += 1
        assert max(len(each.finished) for each in world.emitted) <= 8_192
    assert rounds == 3 and world.ids == [f"r{number}" for number in range(20_000)]


def test_other_files_are_not_opened(world: World) -> None:
    """Of any name in the folder."""
    for name in ("notes.log", "sglang-request-metrics-20261121_15.log.gz", "sglang-request-metrics-now.log"):
        (world.folder / name).write_bytes(line("other"))
    os.mkfifo(world.folder / "sglang-request-metrics.log")
    world.append(line("r1"))
    assert world.round() == {"taken": 1} and world.ids == ["r1"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_file_that_is_not_regular_is_an_error(world: World, make: Any) -> None:
    """It does not block, and the error names it."""
    make(world.file(15))
    with pytest.raises(OSError, match="sglang-request-metrics-20261121_15.log"):
        world.round()


def test_a_missing_folder_or_file_is_not_available(tmp_path: pathlib.Path) -> None:
    """The reason names which of them is missing; files created later are read from their start."""
    world = World(tmp_path / "later")
    with pytest.raises(NotAvailable, match=r"/later is not a folder: does SGLang run with --export-metrics-to-file-dir /.*/later\?"):
        world.round()
    world.folder.mkdir()
    with pytest.raises(NotAvailable, match=r"/later has no sglang-request-metrics-\*.log: does SGLang run with --export-metrics-to-file\?"):
        world.round()
    world.append(line("r1"))
    assert world.round() == {"taken": 1} and world.ids == ["r1"]


def test_a_folder_that_appears_is_read_from_its_start(tmp_path: pathlib.Path) -> None:
    """SGLang creates its folder and the first file after the agent has looked for them."""
    world = World(tmp_path / "later")
    with pytest.raises(NotAvailable, match=r"is not a folder"):
        world.round()
    world.folder.mkdir()
    world.append(line("r1") + line("r2"))
    assert world.round() == {"taken": 2} and world.ids == ["r1", "r2"]


def test_requests_wait_for_the_first_step(tmp_path: pathlib.Path) -> None:
    """Until the epoch of the engine is known a bounded number is kept; the oldest are dropped and counted."""
    world = World(tmp_path, epoch_ns=0)
    world.append(b"")
    world.round()
    world.append(b"".join(line(f"r{number}", request_parameters="") for number in range(8_200)))
    world.round()
    assert world.round() == {"taken": 8_200, "dropped": 8} and not world.emitted
    world.epoch_ns = 77
    world.round()
    assert [each.engine for each in world.emitted] == [Engine("e", 77)]
    assert (world.ids[0], world.ids[-1], len(world.ids)) == ("r8", "r8199", 8_192)


def test_requests_are_sent_with_the_steps_of_their_engine(tmp_path: pathlib.Path) -> None:
    """One span has both, if the forward passes of the engine are received; also after a restart."""
    emitted: list[Datagram] = []
    passes = ForwardPasses("e", "tcp://127.0.0.1:9", emitted.append)
    files = RequestFiles("e", tmp_path, emitted.append, epoch_ns=passes.epoch_ns)
    world, step_buffer, spans = World(tmp_path), StepBuffer(), []
    world.append(b"")
    list(files.collect(NOW))
    world.append(line("early"))
    list(files.collect(NOW))
    for first, response_id in ((40, "before"), (1, "after")):
        for number in (first, first + 1):
            message = {"version": 1, "counter_id": number, "wall_time": 0.01, "scheduled_requests": {}, "queued_requests": {}}
            passes._take(NOW + 10**9 * len(emitted), msgspec.msgpack.encode(message))
        world.append(line(response_id))
        list(files.collect(NOW))
        for each in emitted:
            step_buffer.add(each, NOW)
        emitted.clear()
        for flush in step_buffer.flushes(NOW):
            assert steps_request(flush.engine, flush.steps, flush.finished).SerializeToString()
            spans.append(([step.number for step in flush.steps], [request.response_id for request in flush.finished]))
    passes.close()
    assert spans == [([40, 41], ["early", "before"]), ([1, 2], ["after"])]


NAMES = list(json.loads(line()))


def with_fields(changed: dict[str, Any]) -> bytes:
    """Return a line with these fields."""
    return json.dumps({**json.loads(line()), **changed}).encode() + b"\n"


@examples(30)
@given(
    data=st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.text(max_size=20).map(lambda text: line(text + "!")),
            st.dictionaries(st.sampled_from(NAMES), st.one_of(st.none(), st.integers(), st.floats(), st.text())).map(with_fields),
        ),
        max_size=6,
    ),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_any_contents_are_harmless(tmp_path_factory: pytest.TempPathFactory, data: list[bytes], cuts: list[int]) -> None:
    """For any split of the lines, each is emitted or counted once, and all records can be encoded."""
    world = World(tmp_path_factory.mktemp("files"))
    world.append(b"")
    world.round()
    whole, at = b"".join(data) + b"\n", 0
    for cut in (*sorted(cuts), len(whole)):
        world.append(whole[at:cut])
        at = max(cut, at)
        with contextlib.suppress(DecodeError):
            world.round()
    found = world.round()
    assert sum(found.values()) == whole.count(b"\n") and len(world.ids) == found.get("taken", 0)
    if world.requests:
        assert steps_request(Engine("e", NOW), [Step(1, NOW)], world.requests).SerializeToString()
