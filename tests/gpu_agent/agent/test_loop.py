"""`legato-gpu-agent` as a real process, between the plugin's own code and a real `legato serve`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import legato_gpu_agent
import legato_gpu_agent.agent.loop as module
from helpers.platform.faults import faulty
from helpers.repo.repository import ROOT
from helpers.servers.ports import free_port
from helpers.servers.serving import Served
from legato_gpu_agent.agent.collector_registry import CollectorRegistry
from legato_gpu_agent.agent.loop import Agent
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.agent.settings import Settings, SettingsError
from legato_gpu_agent.plugin.model import Engine, FinishedRequest, SchedulerEvent
from legato_gpu_agent.plugin.protocol import FINISHED, SCHEDULER, finished_entry, pack_entries, scheduler_entry, step_packer
from legato_gpu_agent.plugin.recorder import StepRecorder
from legato_ingest.cli.client import Reader

PATIENCE_S = 120


@contextlib.contextmanager
def agent(path: pathlib.Path, endpoint: str, metrics_port: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Run the command; yield it when it listens."""
    environ = {
        **os.environ,
        "LEGATO_ENGINE_PIPE": str(path),
        "LEGATO_ENDPOINT": endpoint,
        "LEGATO_ENGINE_FLUSH_MS": "100",
        "LEGATO_AGENT_METRICS_PORT": str(metrics_port),
    }
    command = [sys.executable, "-m", "legato_gpu_agent"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            # Written when the pipe and the metrics port are open and the handlers of signals are set.
            printed = first_lines(process, "listening at")
            assert process.poll() is None, printed
            yield process
        finally:
            process.kill()


def first_lines(process: subprocess.Popen[str], last: str) -> str:
    """Return what the process prints until a line that contains ``last``, or until it ends."""
    assert process.stdout
    # A process that hangs prints nothing.
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    printed = ""
    while last not in printed and (line := process.stdout.readline()):
        printed += line
    timer.cancel()
    return printed


def eventually(condition: Any) -> None:
    """Wait until the condition holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


Plugin = Callable[[pathlib.Path, str], StepRecorder]


@pytest.fixture
def recorder() -> Iterator[Plugin]:
    """Create the plugin's recorder for a pipe and an engine id."""
    made: list[StepRecorder] = []

    def make(path: pathlib.Path, name: str) -> StepRecorder:
        made.append(StepRecorder(environ={"LEGATO_ENGINE_PIPE": str(path), "LEGATO_ENGINE_ID": name}, arguments=[]))
        return made[-1]

    yield make
    for each in made:
        each.writer.close()


def path_of(plugin: StepRecorder) -> pathlib.Path:
    """Return the path of the pipe."""
    return pathlib.Path(plugin.writer.path)


def record(plugin: StepRecorder, steps: int, ended: tuple[str, ...] = ()) -> None:
    """Record steps as an engine makes them; the requests end in the last one."""
    details = SimpleNamespace(num_ctx_requests=0, num_ctx_tokens=0, num_generation_requests=4, num_generation_tokens=4, elapsed_ms=2.0)
    scheduler = SimpleNamespace(
        num_running_reqs=4,
        num_waiting_reqs=0,
        num_skipped_waiting_reqs=0,
        kv_cache_usage=0.5,
        iteration_details=details,
        spec_decoding_stats=None,
    )
    names = {"num_preemptions": 0, "num_prompt_tokens": 3, "num_generation_tokens": 9, "queued_time": 0.0, "prefill_time": 0.1}
    for number in range(steps):
        ends = [SimpleNamespace(request_id=each, finish_reason="stop", decode_time=1.0, **names) for each in ended]
        iteration = SimpleNamespace(
            inter_token_latencies_iter=[0.002], num_preempted_reqs=0, finished_requests=ends if number == steps - 1 else []
        )
        plugin.record(scheduler, iteration)
        time.sleep(0.003)
    # As vLLM's event loop does.
    eventually(lambda: plugin.flush() or not path_of(plugin).exists())


def steps_of(served: Served, name: str) -> list[int]:
    """Return the step numbers in the store, with duplicates."""
    return [int(row["step"]) for row in Reader(served.read).rows(f"SELECT step FROM engine_steps WHERE engine_id = '{name}' ORDER BY step")]


def test_from_the_plugin_to_a_row(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """Every step and every finished request of several engines at once, with all known values."""
    path = tmp_path / "s"
    with agent(path, served.otlp):
        one, other = recorder(path, "one"), recorder(path, "other")
        record(one, 40, ("chatcmpl-a", "chatcmpl-b"))
        record(other, 20)
        eventually(lambda: len(steps_of(served, "one")) >= 40 and len(steps_of(served, "other")) >= 20)
        assert steps_of(served, "one") == list(range(1, 41)) and steps_of(served, "other") == list(range(1, 21))
    reader = Reader(served.read)
    (row,) = reader.rows(
        "SELECT * EXCEPT (recorded_at, received_at, engine_epoch, emitter) FROM engine_steps WHERE engine_id = 'one' AND step = 7"
    )
    assert {key: int(value) for key, value in row.items() if isinstance(value, int) or str(value).isdecimal()} == {
        "step": 7,
        "interval_us": 2000,
        "interval_max_us": 2000,
        "elapsed_us": 2000,
        "running": 4,
        "waiting": 0,
        "prefill_requests": 0,
        "prefill_tokens": 0,
        "decode_requests": 4,
        "decode_tokens": 4,
        "preempted": 0,
        "kv_used_ppm": 500_000,
    }
    ended = reader.rows("SELECT response_id, reason, step, output_tokens FROM engine_requests WHERE engine_id = 'one' ORDER BY response_id")
    assert [(each["response_id"], each["reason"], int(each["step"])) for each in ended] == [
        ("chatcmpl-a", "stop", 40),
        ("chatcmpl-b", "stop", 40),
    ]


def test_an_engine_that_restarts_is_a_new_epoch(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """Its step numbers start again, and none is taken for a step of the run before."""
    path = tmp_path / "s"
    with agent(path, served.otlp):
        record(recorder(path, "again"), 5)
        record(recorder(path, "again"), 3)
        eventually(lambda: len(steps_of(served, "again")) >= 8)
    epochs = Reader(served.read).rows("SELECT count() AS n FROM engine_steps WHERE engine_id = 'again' GROUP BY engine_epoch ORDER BY n")
    assert [int(each["n"]) for each in epochs] == [3, 5]


def test_a_receiver_that_comes_and_goes_gets_each_step_once(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """The agent starts before its receiver, which stops, starts again and loses a connection: no step is lost or duplicated."""
    path, port, ingest = tmp_path / "s", free_port(), int(served.otlp.rpartition(":")[2])
    with agent(path, f"http://127.0.0.1:{port}"):
        plugin = recorder(path, "late")
        record(plugin, 10)
        time.sleep(0.3)
        with faulty(ingest, port):
            eventually(lambda: len(steps_of(served, "late")) >= 10)
        record(plugin, 10)
        time.sleep(0.3)
        with faulty(ingest, port) as proxy:
            proxy.fault = "cut_request"
            eventually(lambda: proxy.count["cut_request"])
            proxy.fault = "none"
            record(plugin, 10)
            eventually(lambda: len(steps_of(served, "late")) >= 30)
            assert steps_of(served, "late") == list(range(1, 31)) and proxy.retries >= 1


def test_a_signal_drains_and_ends(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """The contents of the pipe at that moment are in the store when the command has ended."""
    path = tmp_path / "s"
    with agent(path, served.otlp) as process:
        plugin = recorder(path, "drained")
        record(plugin, 30, ("chatcmpl-last",))
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert steps_of(served, "drained") == list(range(1, 31))
        assert process.stdout and "everything was sent" in process.stdout.read()


def send_finished(plugin: StepRecorder, engine: Engine, name: str) -> None:
    """Send a finished request without a step."""
    for datagram in pack_entries(FINISHED, engine, [finished_entry(FinishedRequest(10, name, "stop"))]):
        plugin.writer.send(datagram)
    eventually(lambda: plugin.flush())


def requests_of(served: Served, name: str) -> list[str]:
    """Return the finished requests in the store."""
    return [
        row["response_id"]
        for row in Reader(served.read).rows(f"SELECT response_id FROM engine_requests WHERE engine_id = '{name}' ORDER BY 1")
    ]


def test_requests_after_the_last_step_are_sent(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """While the engine is idle, and at the end; no step is duplicated."""
    path = tmp_path / "s"
    with agent(path, served.otlp) as process:
        plugin = recorder(path, "quiet")
        record(plugin, 10)
        eventually(lambda: len(steps_of(served, "quiet")) == 10)
        send_finished(plugin, plugin.engine, "a")
        eventually(lambda: requests_of(served, "quiet") == ["a"])
        send_finished(plugin, plugin.engine, "b")
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert process.stdout and "everything was sent" in process.stdout.read()
    assert requests_of(served, "quiet") == ["a", "b"] and steps_of(served, "quiet") == list(range(1, 11))


def test_requests_without_steps_count_as_not_sent(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """Without a step their time is unknown; the command reports that some records were not sent."""
    path, port = tmp_path / "s", free_port()
    with agent(path, served.otlp, port) as process:
        send_finished(recorder(path, "stepless"), Engine("stepless", 1), "a")
        # The loop runs now; an earlier signal would end the process without a shutdown.
        eventually(lambda: 'received_records_total{kind="finished"} 1.0' in scraped(port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 1
        assert process.stdout and "some records were not sent: 1 finished (no_step)" in process.stdout.read()


def test_an_agent_with_refused_records_says_so_at_the_end(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """With an address that knows no such path: what was dropped while it ran counts, too, in its last line and its exit status."""
    path, port = tmp_path / "s", free_port()
    with agent(path, f"{served.otlp}/elsewhere", port) as process:
        record(recorder(path, "refused"), 5)
        eventually(lambda: 'dropped_records_total{kind="step",reason="refused"} 5.0' in scraped(port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 1
        assert process.stdout and re.search("answers 404, steps are dropped.*\n(.*\n)*.*not sent: .*5 step .refused", process.stdout.read())


class Interrupted:
    """An agent that is stopped as by a signal: in the loop's thread, at the given line after the first poll began."""

    def __init__(self, settings: Settings, place: int) -> None:
        self._agent, self._left, self._has_polled = Agent(settings, SelfMetrics()), place, False

    def ends(self) -> bool:
        """Return whether the agent ends."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        return not thread.is_alive()

    def _run(self) -> None:
        sys.settrace(self._trace)
        self._agent.run()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        self._has_polled = self._has_polled or frame.f_code is Agent._pause_s.__code__
        self._left -= self._has_polled
        if self._left == 0:
            self._agent.stop()
        return self._trace


def test_a_signal_ends_it_at_any_line(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler runs between any two lines of the loop and of all that it calls, and must not wait for a lock of the loop."""
    monkeypatch.setattr(CollectorRegistry, "start", lambda _: None)
    monkeypatch.setattr(module, "POLL_SILENT_S", 0.001)
    settings = Settings.from_env({"LEGATO_ENGINE_PIPE": str(tmp_path / "s"), "LEGATO_ENGINE_SCAN": "0"})
    for place in range(1, 60, 3):
        assert Interrupted(settings, place).ends(), place


def test_hung_collectors_are_reported_at_every_flush(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hung collector cannot report itself."""
    reported: list[int] = []
    monkeypatch.setattr(CollectorRegistry, "report_hung", lambda _, now_ns: reported.append(now_ns))
    environ = {"LEGATO_ENGINE_PIPE": str(tmp_path / "s"), "LEGATO_ENGINE_SCAN": "0", "LEGATO_ENGINE_FLUSH_MS": "10"}
    agent = Agent(Settings.from_env({**environ, "LEGATO_ENDPOINT": f"http://127.0.0.1:{free_port()}"}), SelfMetrics())
    monkeypatch.setattr(agent, "_export_measurements", lambda _: None)
    thread = threading.Thread(target=agent.run)
    thread.start()
    eventually(lambda: len(reported) >= 3)
    agent.stop()
    thread.join(PATIENCE_S)
    assert abs(reported[-1] - time.time_ns()) < PATIENCE_S * 10**9 and reported == sorted(reported)


def test_a_restarted_agent_misses_no_steps(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """Steps recorded between two agents stay in the pipe."""
    path = tmp_path / "s"
    plugin = recorder(path, "kept")
    with agent(path, served.otlp) as process:
        record(plugin, 10)
        process.terminate()
        assert process.wait(15) == 0
    record(plugin, 10)
    with agent(path, served.otlp):
        time.sleep(1.1)
        record(plugin, 10)
        eventually(lambda: len(steps_of(served, "kept")) >= 30)
        assert steps_of(served, "kept") == list(range(1, 31))


def scraped(port: int) -> str:
    """Return the agent's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def test_invalid_datagrams_are_skipped_and_counted(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """Noise, other versions, truncated and repeated records: the agent continues, valid records arrive, the others are counted."""
    path, port, rng = tmp_path / "s", free_port(), random.Random(1)
    with agent(path, served.otlp, port) as process, open(path, "wb", buffering=0) as noise:
        plugin = recorder(path, "calm")
        record(plugin, 5)
        good = step_packer(Engine("cut off", 1))(*[1] * 16)
        for size in (0, 1, 10, 200, 16_384, 20_000) * 5:
            noise.write(rng.randbytes(size))
            noise.write(good[: rng.randrange(len(good))])
        noise.write(good[:4] + b"\x03" + good[5:])
        record(plugin, 5)
        eventually(lambda: len(steps_of(served, "calm")) >= 10)
        assert process.poll() is None
        text = scraped(port)
    assert steps_of(served, "calm") == list(range(1, 11))
    assert float(re.search(r'bad_datagrams_total\{reason="noise"\} (\S+)', text)[1]) >= 5  # type: ignore[index]
    assert 'bad_datagrams_total{reason="version"}' in text and 'bad_datagrams_total{reason="truncated"}' in text
    assert 'legato_agent_sent_records_total{kind="step"} 10.0' in text


def test_scheduler_events_are_accepted(served: Served, tmp_path: pathlib.Path, recorder: Plugin) -> None:
    """A flush with scheduler events is stored, and none is rejected."""
    path, port = tmp_path / "s", free_port()
    with agent(path, served.otlp, port), open(path, "wb", buffering=0) as hook:
        event = SchedulerEvent(time.time_ns(), "chatcmpl-a", "preempt", 40, 2000)
        for datagram in pack_entries(SCHEDULER, Engine("hooked", 1), [scheduler_entry(event)] * 3):
            hook.write(datagram)
        record(recorder(path, "hooked"), 5)
        eventually(lambda: len(steps_of(served, "hooked")) >= 5)
        eventually(lambda: 'sent_records_total{kind="scheduler"} 3.0' in scraped(port))
    assert Reader(served.read).rows("SELECT * FROM rejected") == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LEGATO_ENDPOINT", "here", "URL"),
        ("LEGATO_ENDPOINT", "http://", "URL"),
        ("LEGATO_ENDPOINT", "http://h:4318/v1/traces/", "the base URL http://h:4318, "),
        ("LEGATO_ENDPOINT", "https://h/otlp/v1/metrics", "the base URL https://h/otlp, "),
        ("LEGATO_ENGINE_FLUSH_MS", "0", "10 to"),
        ("LEGATO_AGENT_METRICS_PORT", "70000", "65535"),
        ("LEGATO_ENGINE_PIPE", "relative", "absolute"),
    ],
)
def test_a_bad_setting_is_named(name: str, value: str, expected: str) -> None:
    """The error names what is expected."""
    with pytest.raises(SettingsError, match=f"{name}.*{expected}"):
        Settings.from_env({name: value})


def test_help_names_every_setting() -> None:
    """It names the steps for vLLM, the other sources and every setting, and imports none of the agent's dependencies."""
    result = subprocess.run([sys.executable, "-m", "legato_gpu_agent", "--help"], capture_output=True, text=True, check=True)
    settings = (pathlib.Path(legato_gpu_agent.__file__).parent / "agent" / "settings.py").read_text(encoding="utf-8")
    names = set(re.findall(r"\bLEGATO_[A-Z0-9_]*[A-Z0-9]\b", settings))
    needed = {"pip install", "VLLM_PLUGINS", "--enable-logging-iteration-details", "--once --print", "GPUs", "host", "[agent]"}
    assert len(names) > 10
    assert {each for each in names | needed | {"LEGATO_ENGINE_ID", "LEGATO_SCHEDULER_HOOK"} if each not in result.stdout} == set()


def test_settings_and_metrics_are_documented() -> None:
    """docs/reference.md has each variable that the distribution reads, and each metric under its scraped name."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    package = pathlib.Path(legato_gpu_agent.__file__).parent
    read = {
        name for path in package.rglob("*.py") for name in re.findall(r"\bLEGATO_[A-Z0-9_]*[A-Z0-9]\b", path.read_text(encoding="utf-8"))
    }
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in SelfMetrics().registry.collect()}
    assert len(read) >= 6 and len(names) >= 8
    assert {name for name in read | names if not re.search(rf"`{name}`", text)} == set()
