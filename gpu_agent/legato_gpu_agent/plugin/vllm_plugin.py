"""vLLM's side of the stat-logger plugin (entry point group ``vllm.stat_logger_plugins``): a subclass that vLLM accepts.

One idea: vLLM wants a class of its own kind; all that can be tested without vLLM is in ``StepRecorder``. It is imported by vLLM alone.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from legato_gpu_agent.plugin.recorder import StepRecorder

__all__ = ["LegatoStatLogger"]


class LegatoStatLogger(StatLoggerBase):  # type: ignore[misc]
    """Tells the agent of each step of one engine. vLLM makes one an engine."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._recorder = StepRecorder(engine_index)

    def record(
        self, scheduler_stats: Any = None, iteration_stats: Any = None, mm_cache_stats: Any = None, engine_idx: int = 0, **_: Any
    ) -> None:
        """One step. vLLM calls it on its event loop."""
        self._recorder.record(scheduler_stats, iteration_stats)

    def log(self) -> None:
        """Called every few seconds: time to send what is left."""
        self._recorder.catch_up()

    def log_engine_initialized(self) -> None:
        """vLLM asks for it; there is nothing to say."""
