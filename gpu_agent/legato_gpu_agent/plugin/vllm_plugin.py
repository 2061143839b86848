"""The stat-logger plugin as vLLM loads it (entry point group ``vllm.stat_logger_plugins``).

vLLM requires a subclass of its class ``StatLoggerBase``. Everything that can be tested without vLLM is in ``StepRecorder``. Only vLLM
imports this module.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from legato_gpu_agent.plugin.recorder import StepRecorder

__all__ = ["LegatoStatLogger"]


class LegatoStatLogger(StatLoggerBase):  # type: ignore[misc]
    """Sends the agent a record of each step of one engine. vLLM creates one logger per engine."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._recorder = StepRecorder(engine_index)

    def record(
        self, scheduler_stats: Any = None, iteration_stats: Any = None, mm_cache_stats: Any = None, engine_idx: int = 0, **_: Any
    ) -> None:
        """Record one step. vLLM calls this on its event loop."""
        self._recorder.record(scheduler_stats, iteration_stats)

    def log(self) -> None:
        """Send the backlog. vLLM calls this every few seconds."""
        self._recorder.flush()

    def log_engine_initialized(self) -> None:
        """Do nothing; vLLM requires the method."""
