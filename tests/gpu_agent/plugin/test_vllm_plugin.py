"""The stat logger as vLLM loads it, on a stand-in for the one module of vLLM that it imports."""

from __future__ import annotations

import contextlib
import importlib.metadata
import pathlib
import sys
from abc import ABC, abstractmethod
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from legato_gpu_agent.agent.pipe_reader import PipeReader
from legato_gpu_agent.plugin.protocol import decode


class StatLoggerBase(ABC):
    """The interface of vLLM 0.32."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...


def test_vllm_can_create_and_call_it(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """It is a complete subclass of vLLM's class; a call as vLLM makes it, and one with further arguments, send a datagram each."""
    module = ModuleType("vllm.v1.metrics.loggers")
    module.StatLoggerBase = StatLoggerBase  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", module)
    monkeypatch.delitem(sys.modules, "legato_gpu_agent.plugin.vllm_plugin", raising=False)
    monkeypatch.setenv("LEGATO_ENGINE_PIPE", str(tmp_path / "s"))
    monkeypatch.setenv("LEGATO_ENGINE_ID", "here")
    (entry,) = importlib.metadata.entry_points(group="vllm.stat_logger_plugins", name="legato")
    logger: Any = entry.load()(SimpleNamespace(), 1)
    assert StatLoggerBase in type(logger).__mro__
    with contextlib.closing(PipeReader(tmp_path / "s")) as reader:
        logger.log_engine_initialized()
        logger.record(engine_idx=1, scheduler_stats=SimpleNamespace(), iteration_stats=None, mm_cache_stats=None)
        logger.record(SimpleNamespace(), None, something_new=True)
        logger.log()
        sent = [decode(each) for each in reader.read()]
    assert [(each.engine.id, each.step.number) for each in sent if each.step] == [("here/1", 1), ("here/1", 2)]
    logger._recorder.writer.close()


def test_the_entry_point_of_the_hook_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM calls it in every process; by default it does nothing."""
    monkeypatch.delenv("LEGATO_SCHEDULER_HOOK", raising=False)
    (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="legato_scheduler")
    assert entry.load()() is None
