"""The step recorder on stand-ins for vLLM's objects: the records it sends, and that no error reaches the engine."""

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

from legato_gpu_agent.agent.pipe_reader import PipeReader
from legato_gpu_agent.plugin.identity import engine_id
from legato_gpu_agent.plugin.model import FinishedRequest, Step
from legato_gpu_agent.plugin.protocol import Datagram, decode
from legato_gpu_agent.plugin.recorder import StepRecorder

NOW = 1_700_000_000_000_000_000


class Listener:
    """An agent that decodes everything it receives."""

    def __init__(self, path: pathlib.Path) -> None:
        self.reader = PipeReader(path)

    def datagrams(self) -> list[Datagram]:
        """Return the datagrams since the last call."""
        return [decode(each) for each in self.reader.read()]

    def step(self) -> Step:
        """Return the only step since the last call."""
        (datagram,) = (datagram for datagram in self.datagrams() if datagram.step)
        assert datagram.step
        return datagram.step


@pytest.fixture
def listener(tmp_path: pathlib.Path) -> Iterator[Listener]:
    """Create the agent's end of the pipe."""
    listener = Listener(tmp_path / "s")
    yield listener
    listener.reader.close()


@pytest.fixture
def recorder(tmp_path: pathlib.Path) -> Iterator[StepRecorder]:
    """Create a recorder with a constant clock."""
    recorder = StepRecorder(environ={"LEGATO_ENGINE_PIPE": str(tmp_path / "s")}, arguments=["vllm", "serve"], clock_ns=lambda: NOW)
    yield recorder
    recorder.writer.close()


def scheduler(**changes: Any) -> SimpleNamespace:
    """Return `SchedulerStats` of a step with all features enabled."""
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
    """Return `IterationStats` of the same step."""
    base = {"inter_token_latencies_iter": [0.0301, 0.0305, 0.2], "num_preempted_reqs": 1, "finished_requests": []}
    return SimpleNamespace(**{**base, **changes})


FULL = Step(1, NOW, 30_100, 12, 5, 1, 700, 11, 12, 8, 6, 30_500, 250_000, 1, 200_000)


def test_a_step_is_recorded_completely(listener: Listener, recorder: StepRecorder) -> None:
    """Every field of `Step`, from its place in vLLM's objects."""
    recorder.record(scheduler(), iteration())
    assert listener.step() == FULL


def test_steps_are_numbered_from_one(listener: Listener, recorder: StepRecorder) -> None:
    """By the recorder's own count, under one epoch; a call without either object is not a step."""
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
def test_missing_values_are_unknown(
    listener: Listener, recorder: StepRecorder, scheduler_stats: Any, iteration_stats: Any, changes: dict[str, Any]
) -> None:
    """A step lacks exactly the fields that its objects lack."""
    recorder.record(scheduler_stats, iteration_stats)
    expected = {name: getattr(FULL, name) for name in FULL.__dataclass_fields__} | changes
    assert listener.step() == Step(**expected)


def without(stats: SimpleNamespace, name: str) -> SimpleNamespace:
    """Return the same object without an attribute."""
    return SimpleNamespace(**{key: value for key, value in vars(stats).items() if key != name})


FIELDS = {
    "num_running_reqs": ("running",),
    "kv_cache_usage": ("kv_used_ppm",),
    "spec_decoding_stats": ("draft_tokens", "accepted_tokens"),
    "inter_token_latencies_iter": ("interval_us", "interval_max_us"),
    "num_preempted_reqs": ("preempted",),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_renamed_attribute_is_logged_once(
    listener: Listener, recorder: StepRecorder, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """With its name; only its fields are unknown."""
    for _ in range(3):
        recorder.record(without(scheduler(), name), without(iteration(), name))
    step = listener.datagrams()[0].step
    assert step and step == Step(**{key: getattr(FULL, key) for key in FULL.__dataclass_fields__} | dict.fromkeys(FIELDS[name]))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert name in caplog.text


def test_a_property_that_raises_is_unknown(listener: Listener, recorder: StepRecorder) -> None:
    """For any exception, the step is recorded without it."""

    class Odd(SimpleNamespace):
        @property
        def num_running_reqs(self) -> int:
            raise RuntimeError("not now")

    recorder.record(Odd(**vars(without(scheduler(), "num_running_reqs"))), iteration())
    step = listener.step()
    assert step.running is None and step.interval_us == 30_100


def test_missing_details_name_the_option(recorder: StepRecorder, caplog: pytest.LogCaptureFixture) -> None:
    """In one log line per recorder."""
    for _ in range(3):
        recorder.record(scheduler(iteration_details=None), iteration())
    assert caplog.text.count("--enable-logging-iteration-details") == 1


def test_finished_requests_precede_their_step(listener: Listener, recorder: StepRecorder) -> None:
    """With the client's id; a request that cannot be recorded affects no other."""
    request = SimpleNamespace(
        request_id="chatcmpl-1",
        finish_reason=SimpleNamespace(__str__=lambda: "stop"),
        num_preemptions=2,
        num_prompt_tokens=40,
        num_generation_tokens=300,
        queued_time=0.001,
        prefill_time=0.25,
        decode_time=9.5,
    )
    request.finish_reason = "stop"
    recorder.record(scheduler(), iteration(finished_requests=[request, SimpleNamespace(), request]))
    ended_datagram, step = listener.datagrams()
    good = FinishedRequest(1, "chatcmpl-1", "stop", 2, 40, 300, 1_000, 250_000, 9_500_000)
    assert ended_datagram.finished == (good, FinishedRequest(1, ""), good)
    assert step.step == FULL


def test_long_requests_keep_their_durations(listener: Listener, recorder: StepRecorder) -> None:
    """Their columns have 64 bits: 71 minutes are no limit, as they are for a step's."""
    numbers = {"num_preemptions": 0, "num_prompt_tokens": 1, "num_generation_tokens": 2**40}
    request = SimpleNamespace(request_id="a", finish_reason="stop", queued_time=0.0, prefill_time=7_200.0, decode_time=1e300, **numbers)
    recorder.record(scheduler(), iteration(finished_requests=[request]))
    ended, _ = listener.datagrams()
    assert ended.finished == (FinishedRequest(1, "a", "stop", 0, 1, 2**32 - 2, 0, 7_200_000_000, 2**63 - 1),)


def test_losses_are_reported_with_the_next_record(tmp_path: pathlib.Path, recorder: StepRecorder) -> None:
    """Without an agent no call blocks or raises; the first record that arrives carries the number of losses."""
    started = time.monotonic()
    for _ in range(1500):
        recorder.record(scheduler(), iteration())
    assert time.monotonic() - started < 10
    assert recorder.writer.dropped == 1500 - 1024
    listener = Listener(tmp_path / "s")
    recorder.writer._next_check_s = 0.0
    dropped = 0
    for _ in range(1100):
        recorder.record(scheduler(), iteration())
        dropped = max([dropped, *(datagram.dropped for datagram in listener.datagrams())])
    assert dropped >= 1500 - 1024
    listener.reader.close()


def test_the_last_steps_of_a_burst_are_sent_later(tmp_path: pathlib.Path, recorder: StepRecorder) -> None:
    """On an event loop as in vLLM, steps that did not fit into the pipe are sent although no further step follows."""
    listener = Listener(tmp_path / "s")

    async def engine() -> list[int]:
        for _ in range(40):
            recorder.record(scheduler(), iteration())
        found: list[Datagram] = []
        for _ in range(100):
            found += listener.datagrams()
            await asyncio.sleep(0.05 if len(found) < 40 else 0)
        return [datagram.step.number for datagram in found if datagram.step]

    assert asyncio.run(engine()) == list(range(1, 41)) and not recorder._retry_scheduled
    listener.reader.close()


def test_the_plugins_import_no_heavy_package() -> None:
    """Importing them in vLLM's processes loads neither numpy nor protobuf."""
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
def test_the_engine_has_the_id_of_its_server(environ: dict[str, str], arguments: list[str], index: int, expected: str) -> None:
    """From the setting, or else the address that the middleware sees on this host."""
    assert engine_id(environ, arguments, index) == expected


def test_the_middleware_of_the_same_process_uses_the_same_id(tmp_path: pathlib.Path) -> None:
    """The recorder stores its id in the variable that the middleware reads."""
    environ = {"LEGATO_ENGINE_PIPE": str(tmp_path / "s")}
    second = StepRecorder(1, environ=environ, arguments=["--host", "::"])
    assert environ["LEGATO_ENGINE_ID"] == "127.0.0.1:8000" and second.engine.id == "127.0.0.1:8000/1"
