"""The stat logger's core on stand-ins for vLLM's objects: what it tells, and that nothing they do reaches the engine."""

from __future__ import annotations

import asyncio
import logging
import math
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from legato_gpu_agent.agent.pipe_reader import Inlet
from legato_gpu_agent.plugin.identity import engine_id, pipe_path
from legato_gpu_agent.plugin.model import FinishedRequest, Step
from legato_gpu_agent.plugin.protocol import Datagram, decode
from legato_gpu_agent.plugin.recorder import StepRecorder

NOW = 1_700_000_000_000_000_000


class Listener:
    """An agent that keeps what it gets."""

    def __init__(self, path: pathlib.Path) -> None:
        self.inlet = Inlet(path)

    def datagrams(self) -> list[Datagram]:
        """What came since the last time."""
        return [decode(each) for each in self.inlet.read()]

    def step(self) -> Step:
        """The one step that came."""
        (datagram,) = (datagram for datagram in self.datagrams() if datagram.step)
        assert datagram.step
        return datagram.step


@pytest.fixture
def listener(tmp_path: pathlib.Path) -> Iterator[Listener]:
    """An agent's pipe."""
    listener = Listener(tmp_path / "s")
    yield listener
    listener.inlet.close()


@pytest.fixture
def recorder(tmp_path: pathlib.Path) -> Iterator[StepRecorder]:
    """A recorder whose clock stands still."""
    recorder = StepRecorder(environ={"LEGATO_ENGINE_PIPE": str(tmp_path / "s")}, arguments=["vllm", "serve"], clock_ns=lambda: NOW)
    yield recorder
    recorder.outlet.close()


def scheduler(**changes: Any) -> SimpleNamespace:
    """`SchedulerStats` of a step with everything on."""
    details = SimpleNamespace(num_ctx_requests=1, num_ctx_tokens=700, num_generation_requests=11, num_generation_tokens=12, elapsed_ms=30.5)
    base = {
        "num_running_reqs": 12,
        "num_waiting_reqs": 2,
        "num_skipped_waiting_reqs": 3,
        "kv_cache_usage": 0.25,
        "iteration_details": details,
        "spec_decoding_stats": SimpleNamespace(num_draft_tokens=8, num_accepted_tokens=6),
    }
    return SimpleNamespace(**{**base, **changes})


def iteration(**changes: Any) -> SimpleNamespace:
    """`IterationStats` of the same step."""
    base = {"inter_token_latencies_iter": [0.0301, 0.0305, 0.2], "num_preempted_reqs": 1, "finished_requests": []}
    return SimpleNamespace(**{**base, **changes})


FULL = Step(1, NOW, 30_100, 12, 5, 1, 700, 11, 12, 8, 6, 30_500, 250_000, 1, 200_000)


def test_a_step_is_told_as_it_was(listener: Listener, recorder: StepRecorder) -> None:
    """Every field of `Step`, from where vLLM has it."""
    recorder.record(scheduler(), iteration())
    assert listener.step() == FULL


def test_steps_are_numbered_from_one(listener: Listener, recorder: StepRecorder) -> None:
    """By the recorder's own count, under one epoch; a call without either object is no step."""
    for _ in range(3):
        recorder.record(scheduler(), iteration())
        recorder.record(None, None)
    datagrams = listener.datagrams()
    assert [datagram.step.number for datagram in datagrams if datagram.step] == [1, 2, 3]
    assert {datagram.engine.epoch_ns for datagram in datagrams} == {NOW}


@pytest.mark.parametrize(
    ("scheduler_stats", "iteration_stats", "changes"),
    [
        (scheduler(), None, {"interval_us": None, "interval_max_us": None, "preempted": None}),
        (
            None,
            iteration(),
            {name: None for name in Step.__dataclass_fields__ if name not in ("number", "recorded_ns")}
            | {"interval_us": 30_100, "interval_max_us": 200_000, "preempted": 1},
        ),
        (scheduler(spec_decoding_stats=None), iteration(), {"draft_tokens": None, "accepted_tokens": None}),
        (
            scheduler(iteration_details=None),
            iteration(),
            dict.fromkeys(("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "elapsed_us")),
        ),
        (scheduler(), iteration(inter_token_latencies_iter=[]), {"interval_us": None, "interval_max_us": None}),
        (scheduler(kv_cache_usage=math.nan), iteration(), {"kv_used_ppm": None}),
        (scheduler(num_running_reqs="many"), iteration(), {"running": None}),
        (scheduler(num_running_reqs=10**30), iteration(), {"running": 2**32 - 2}),
        (scheduler(num_skipped_waiting_reqs=None), iteration(), {"waiting": 2}),
        (scheduler(), iteration(inter_token_latencies_iter=[math.inf, 0.5]), {"interval_us": 500_000, "interval_max_us": 500_000}),
        (scheduler(), iteration(inter_token_latencies_iter="none"), {"interval_us": None, "interval_max_us": None}),
        (scheduler(), iteration(finished_requests=7), {}),
        (
            object(),
            object(),
            {name: None for name in Step.__dataclass_fields__ if name not in ("number", "recorded_ns")},
        ),
    ],
)
def test_what_is_not_there_is_unknown(
    listener: Listener, recorder: StepRecorder, scheduler_stats: Any, iteration_stats: Any, changes: dict[str, Any]
) -> None:
    """A step lacks what its objects lack, and nothing else."""
    recorder.record(scheduler_stats, iteration_stats)
    expected = {name: getattr(FULL, name) for name in FULL.__dataclass_fields__} | changes
    assert listener.step() == Step(**expected)


def without(stats: SimpleNamespace, name: str) -> SimpleNamespace:
    """The same object without an attribute."""
    return SimpleNamespace(**{key: value for key, value in vars(stats).items() if key != name})


FIELDS = {
    "num_running_reqs": ("running",),
    "kv_cache_usage": ("kv_used_ppm",),
    "spec_decoding_stats": ("draft_tokens", "accepted_tokens"),
    "inter_token_latencies_iter": ("interval_us", "interval_max_us"),
    "num_preempted_reqs": ("preempted",),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_renamed_attribute_is_said_once(listener: Listener, recorder: StepRecorder, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """By name, and only its fields are unknown."""
    for _ in range(3):
        recorder.record(without(scheduler(), name), without(iteration(), name))
    step = listener.datagrams()[0].step
    assert step and step == Step(**{key: getattr(FULL, key) for key in FULL.__dataclass_fields__} | dict.fromkeys(FIELDS[name]))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert name in caplog.text


def test_a_property_that_raises_is_unknown(listener: Listener, recorder: StepRecorder) -> None:
    """Whatever it raises, the step is told without it."""

    class Odd(SimpleNamespace):
        @property
        def num_running_reqs(self) -> int:
            raise RuntimeError("not now")

    recorder.record(Odd(**vars(without(scheduler(), "num_running_reqs"))), iteration())
    step = listener.step()
    assert step.running is None and step.interval_us == 30_100


def test_missing_details_say_what_to_do(recorder: StepRecorder, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the option's name."""
    for _ in range(3):
        recorder.record(scheduler(iteration_details=None), iteration())
    assert caplog.text.count("--enable-logging-iteration-details") == 1


def test_finished_requests_come_before_their_step(listener: Listener, recorder: StepRecorder) -> None:
    """With the id that the client knows; one that cannot be told costs itself alone."""
    ended = SimpleNamespace(
        request_id="chatcmpl-1",
        finish_reason=SimpleNamespace(__str__=lambda: "stop"),
        num_preemptions=2,
        num_prompt_tokens=40,
        num_generation_tokens=300,
        queued_time=0.001,
        prefill_time=0.25,
        decode_time=9.5,
    )
    ended.finish_reason = "stop"
    recorder.record(scheduler(), iteration(finished_requests=[ended, SimpleNamespace(), ended]))
    told, step = listener.datagrams()
    good = FinishedRequest(1, "chatcmpl-1", "stop", 2, 40, 300, 1_000, 250_000, 9_500_000)
    assert told.finished == (good, FinishedRequest(1, ""), good)
    assert step.step == FULL


def test_drops_are_told_later(tmp_path: pathlib.Path, recorder: StepRecorder) -> None:
    """Without an agent no call waits or raises; the first record that arrives says how many were lost."""
    started = time.monotonic()
    for _ in range(1500):
        recorder.record(scheduler(), iteration())
    assert time.monotonic() - started < 2.0
    assert recorder.outlet.dropped == 1500 - 1024
    listener = Listener(tmp_path / "s")
    recorder.outlet._look_at = 0.0
    dropped = 0
    for _ in range(1100):
        recorder.record(scheduler(), iteration())
        dropped = max([dropped, *(datagram.dropped for datagram in listener.datagrams())])
    assert dropped >= 1500 - 1024
    listener.inlet.close()


def test_the_last_steps_of_a_burst_follow_by_themselves(tmp_path: pathlib.Path, recorder: StepRecorder) -> None:
    """On an event loop, as in vLLM: what the agent's full queue refused is sent although no further step comes."""
    listener = Listener(tmp_path / "s")

    async def engine() -> list[int]:
        for _ in range(40):
            recorder.record(scheduler(), iteration())
        found: list[Datagram] = []
        for _ in range(100):
            found += listener.datagrams()
            await asyncio.sleep(0.05 if len(found) < 40 else 0)
        return [datagram.step.number for datagram in found if datagram.step]

    assert asyncio.run(engine()) == list(range(1, 41)) and not recorder._waits
    listener.inlet.close()


def test_the_plugins_load_the_standard_library_alone() -> None:
    """What vLLM's processes import brings neither numpy nor protobuf."""
    script = (
        "import sys, legato_gpu_agent.plugin.recorder, legato_gpu_agent.plugin.scheduler_hook as hook; hook.install(); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in loaded if name.split(".")[0] in ("numpy", "google", "opentelemetry", "prometheus_client", "vllm")] == []


@pytest.mark.parametrize(
    ("environ", "arguments", "index", "expected"),
    [
        ({"LEGATO_ENGINE_ID": "rack-7"}, ["--port", "9"], 0, "rack-7"),
        ({"LEGATO_ENGINE_ID": "rack-7"}, [], 3, "rack-7/3"),
        ({}, ["serve", "m"], 0, "127.0.0.1:8000"),
        ({}, ["serve", "m", "--host", "0.0.0.0", "--port=8002"], 0, "127.0.0.1:8002"),
        ({}, ["serve", "--host=10.1.2.3", "--port", "81"], 0, "10.1.2.3:81"),
        ({}, ["serve", "--port"], 1, "127.0.0.1:8000/1"),
    ],
)
def test_the_engine_is_called_as_its_server_is(environ: dict[str, str], arguments: list[str], index: int, expected: str) -> None:
    """By the setting, else by the address that the middleware sees on this host."""
    assert engine_id(environ, arguments, index) == expected


def test_the_middleware_of_the_same_process_says_the_same(tmp_path: pathlib.Path) -> None:
    """The recorder leaves its id where the middleware looks for it."""
    environ = {"LEGATO_ENGINE_PIPE": str(tmp_path / "s")}
    second = StepRecorder(1, environ=environ, arguments=["--host", "::"])
    assert environ["LEGATO_ENGINE_ID"] == "127.0.0.1:8000" and second.engine.id == "127.0.0.1:8000/1"


def test_the_pipe_has_one_default() -> None:
    """The setting, the user's runtime folder, a folder of the user's own."""
    assert str(pipe_path({"LEGATO_ENGINE_PIPE": "/a/b", "XDG_RUNTIME_DIR": "/run/user/7"})) == "/a/b"
    assert str(pipe_path({"XDG_RUNTIME_DIR": "/run/user/7"})) == "/run/user/7/legato/engine.pipe"
    assert pipe_path({}).parts[1:2] == ("tmp",) and pipe_path({}).parent.name.startswith("legato-")
