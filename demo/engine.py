"""The demo's engine: it passes the recorded steps to Legato's vLLM plugin at their recorded times.

The plugin's recorder receives objects with the attributes of vLLM's, as vLLM passes them to its stat loggers. Everything after that (pipe,
`legato-gpu-agent`, OTLP) is the same as with a real engine. No token is computed.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from demo.plan import Plan
from demo.recording import EngineStep, Finished, Recording
from legato_gpu_agent.plugin.recorder import StepRecorder

__all__ = ["ReplayedEngine"]


class ReplayedEngine:
    """Replays the engine steps of one recording."""

    def __init__(self, plan: Plan, recording: Recording, recorder: StepRecorder) -> None:
        self._recorder, self._speed = recorder, plan.speed
        names = {stream.key: plan.response_id(stream) for stream in recording.streams}
        self._steps = [(step.at_us, *_objects(step, names, plan.speed)) for step in recording.steps]

    async def run(self, began: float) -> None:
        """Replay the steps. ``began``: start of the recording, in seconds of the event loop's clock."""
        clock = asyncio.get_running_loop().time
        for at_us, scheduler, iteration in self._steps:
            wait = began + at_us / 1e6 / self._speed - clock()
            if wait > 0:
                await asyncio.sleep(wait)
            self._recorder.record(scheduler, iteration)


def _objects(step: EngineStep, names: dict[str, str], speed: float) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Return vLLM's ``SchedulerStats`` and ``IterationStats`` of a step, with the attributes that the plugin reads."""
    details = None
    if step.work is not None:
        context, context_tokens, decodes, decode_tokens, elapsed_ms = step.work
        details = SimpleNamespace(
            num_ctx_requests=context,
            num_ctx_tokens=context_tokens,
            num_generation_requests=decodes,
            num_generation_tokens=decode_tokens,
            elapsed_ms=elapsed_ms / speed,
        )
    scheduler = SimpleNamespace(
        num_running_reqs=step.running,
        num_waiting_reqs=step.waiting,
        num_skipped_waiting_reqs=0,
        kv_cache_usage=step.kv_used,
        iteration_details=details,
        spec_decoding_stats=None,
    )
    iteration = SimpleNamespace(
        inter_token_latencies_iter=[interval / speed for interval in step.intervals_s],
        num_preempted_reqs=step.preempted,
        finished_requests=[_finished(each, names[each.key], speed) for each in step.finished if each.key in names],
    )
    return scheduler, iteration


def _finished(each: Finished, name: str, speed: float) -> SimpleNamespace:
    return SimpleNamespace(
        request_id=name,
        finish_reason=each.reason,
        num_preemptions=each.preemptions,
        num_prompt_tokens=each.prompt_tokens,
        num_generation_tokens=each.output_tokens,
        queued_time=each.queued_s / speed,
        prefill_time=each.prefill_s / speed,
        decode_time=each.decode_s / speed,
    )
