"""The scheduler hook on a stand-in with the same methods: the events it sends, and that the scheduler is not affected."""

from __future__ import annotations

import logging
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from legato_gpu_agent.plugin import scheduler_hook
from legato_gpu_agent.plugin.model import SchedulerEvent
from legato_gpu_agent.plugin.protocol import decode
from legato_gpu_agent.plugin.scheduler_hook import SchedulerHook

NOW = 1_700_000_000_000_000_000
SUFFIX = "-a934cdb8"


class Clock:
    """A clock that advances by 1 ms at each reading."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


def fake() -> Any:
    """Return a scheduler class with the methods that the hook wraps, which records its calls."""

    class Scheduler:
        def __init__(self) -> None:
            self.calls: list[Any] = []
            self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_rank=0))

        def schedule(self, plan: dict[str, int], victims: tuple[str, ...] = (), **more: Any) -> Any:
            for victim in victims:
                self._preempt_request(SimpleNamespace(request_id=victim + SUFFIX, num_computed_tokens=333), 0.0)
            self.calls.append("schedule")
            tokens = {name + SUFFIX: number for name, number in plan.items()}
            drafts = {name + SUFFIX: [0] * number for name, number in more.get("drafts", {}).items()}
            return SimpleNamespace(num_scheduled_tokens=tokens, scheduled_spec_decode_tokens=drafts, finished_req_ids=set())

        def _preempt_request(self, request: Any, timestamp: float) -> None:
            self.calls.append(("preempt", request.request_id))

        def update_from_output(self, output: Any, model_output: Any) -> str:
            self.calls.append("update")
            return "outputs"

    return Scheduler


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SchedulerEvent]]:
    """Collect the events that the hook sends."""
    found: list[SchedulerEvent] = []
    monkeypatch.setattr("legato_gpu_agent.plugin.pipe_writer.PipeWriter.send", lambda _, datagram: found.extend(decode(datagram).events))
    yield found


def hooked(scheduler: Any) -> SchedulerHook:
    """Install the hook on a class, with the advancing clock."""
    return SchedulerHook(scheduler, path="/nowhere/s", environ={}, arguments=[], clock_ns=Clock())


def step(scheduler: Any, plan: dict[str, int], victims: tuple[str, ...] = (), **more: Any) -> None:
    """Run a complete step."""
    assert scheduler.update_from_output(scheduler.schedule(plan, victims, **more), None) == "outputs"


def test_prefill_preemption_and_resumption_are_recorded(events: list[SchedulerEvent]) -> None:
    """With the client's id and tokens. A recomputation in several steps is a resumption until its end; a decode step has no event."""
    kind = fake()
    hooked(kind)
    scheduler = kind()
    step(scheduler, {"a": 700, "b": 1})
    step(scheduler, {"a": 1, "b": 1})
    step(scheduler, {"b": 1}, ("a",))
    step(scheduler, {"a": 512, "b": 1})
    step(scheduler, {"a": 188, "c": 40})
    step(scheduler, {"a": 1, "c": 1})
    step(scheduler, {"a": 30})
    assert [(event.response_id, event.kind, event.tokens) for event in events] == [
        ("a", "prefill", 700),
        ("a", "preempt", 333),
        ("a", "resume", 512),
        ("a", "resume", 188),
        ("c", "prefill", 40),
        ("a", "prefill", 30),
    ]
    # The clock advances once when `schedule` begins and once when the update begins.
    assert events[0].time_ns == NOW + 2_000_000 and events[0].step_us == 1_000


def test_drafts_are_not_prefill(events: list[SchedulerEvent]) -> None:
    """A speculating request has one token and its drafts scheduled."""
    kind = fake()
    hooked(kind)
    step(kind(), {"a": 5, "b": 5}, drafts={"a": 4})
    assert [event.response_id for event in events] == ["b"]


def test_two_steps_may_be_in_progress(events: list[SchedulerEvent]) -> None:
    """Asynchronous scheduling: the next step is scheduled before the output of the last one exists."""
    kind = fake()
    hooked(kind)
    scheduler = kind()
    first, second = scheduler.schedule({"a": 9}), scheduler.schedule({"b": 8})
    scheduler.update_from_output(first, None)
    scheduler.update_from_output(second, None)
    assert [(event.response_id, event.step_us > 0) for event in events] == [("a", True), ("b", True)]


def test_steps_without_output_are_bounded(events: list[SchedulerEvent]) -> None:
    """The oldest is sent without its duration."""
    kind = fake()
    hook = hooked(kind)
    scheduler = kind()
    kept = [scheduler.schedule({f"r{i}": 9}) for i in range(20)]
    assert kept and [(event.response_id, event.step_us) for event in events] == [(f"r{i}", 0) for i in range(4)]
    assert len(hook._open) == 16


def test_the_scheduler_is_not_affected(events: list[SchedulerEvent]) -> None:
    """The same calls in the same order, the same results, and its own exceptions."""
    kind = fake()
    hooked(kind)
    scheduler = kind()
    step(scheduler, {"a": 1}, ("b",))
    assert scheduler.calls == [("preempt", "b" + SUFFIX), "schedule", "update"]
    with pytest.raises(TypeError):
        scheduler.schedule()
    step(scheduler, {"a": 2})
    assert events[-1].tokens == 2


@pytest.mark.parametrize(
    "odd", [None, SimpleNamespace(), SimpleNamespace(num_scheduled_tokens={"a": "many"}, scheduled_spec_decode_tokens={})]
)
def test_an_unexpected_value_removes_the_hook(odd: Any, events: list[SchedulerEvent], caplog: pytest.LogCaptureFixture) -> None:
    """With one log line, and the class is as before."""
    kind = fake()
    kind.schedule = lambda self, *_: odd
    originals = {name: getattr(kind, name) for name in ("schedule", "_preempt_request", "update_from_output")}
    hook = hooked(kind)
    scheduler = kind()
    assert scheduler.schedule({}) is odd and scheduler.schedule({}) is odd
    assert not hook.active and {name: getattr(kind, name) for name in originals} == originals
    assert [record.levelno for record in caplog.records] == [logging.WARNING] and not events


def test_a_class_without_a_method_is_not_changed() -> None:
    """Either all methods are replaced or none."""
    kind = fake()
    del kind._preempt_request
    schedule = kind.schedule
    with pytest.raises(AttributeError):
        hooked(kind)
    assert kind.schedule is schedule


@pytest.mark.parametrize(("setting", "active"), [("", False), ("0", False), ("1", True), ("/some/where.sock", True)])
def test_it_is_off_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, setting: str, active: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`install`, which vLLM calls in each process, reads LEGATO_SCHEDULER_HOOK; a path there is the pipe."""
    module = ModuleType("vllm.v1.core.sched.scheduler")
    module.Scheduler = kind = fake()  # type: ignore[attr-defined]
    schedule = kind.schedule
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", module)
    monkeypatch.setattr(scheduler_hook, "_installed", None)
    monkeypatch.setenv("LEGATO_SCHEDULER_HOOK", setting)
    monkeypatch.setenv("LEGATO_ENGINE_PIPE", str(tmp_path / "s"))
    scheduler_hook.install()
    scheduler_hook.install()
    assert (kind.schedule is not schedule) is active and not caplog.records
    if setting.startswith("/"):
        assert scheduler_hook._installed and scheduler_hook._installed.writer.path == setting


def test_another_vllm_is_not_changed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If the module has another structure, one line is logged and nothing raised."""
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", ModuleType("vllm.v1.core.sched.scheduler"))
    monkeypatch.setattr(scheduler_hook, "_installed", None)
    monkeypatch.setenv("LEGATO_SCHEDULER_HOOK", "1")
    scheduler_hook.install()
    assert "does not fit" in caplog.text and scheduler_hook._installed is None
