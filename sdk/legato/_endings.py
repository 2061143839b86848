"""When a response is over, and how it ended, by its events and by how reading it ended. Pure functions; `_recorder` calls them."""

from __future__ import annotations

from legato._records import End, Origin
from legato._response import ResponseInfo

__all__ = ["OVER_NS", "end_of", "is_over"]

OVER_NS = 1_000_000_000
"""Silence after which a response with its end mark is over. It is shorter than the first silence that is reported, as is the next one."""
# The same for a response with a finish reason alone: the usage follows.
_FINISHED_NS = 1_500_000_000
_TOOL_REASONS = ("tool_calls", "function_call", "tool_use")


def is_over(response: ResponseInfo, origin: Origin, silence_ns: int) -> bool:
    """Return whether nothing more will be read of a response. Some clients stop at the end mark, and keep the response as garbage.

    A server ends its responses itself. After a call of a tool, another round may follow in the same response.
    """
    if origin.vantage != "client" or origin.transport == "websocket" or silence_ns < OVER_NS:
        return False
    reason = response.finish_reasons[-1] if response.finish_reasons else ""
    if response.done:
        # Anthropic's format has an end mark for each round.
        return reason != "tool_use"
    return response.finished and reason not in _TOOL_REASONS and not response.open_choices and silence_ns >= _FINISHED_NS


def end_of(response: ResponseInfo, end: End, last_ns: int) -> End:
    """Return how a response ended. What it reported overrides ``end``, how reading it ended. A complete one ends with its last byte."""
    if response.error:
        return End(end.time_ns, "upstream_error", response.error)
    if response.cancelled:
        return End(end.time_ns, "client_cancel")
    if "abort" in response.finish_reasons:
        return End(end.time_ns, "engine_abort", end.error_type)
    if response.done or response.finished:
        return End(last_ns, "complete")
    if end.outcome != "complete":
        return end
    if response.expects_end and not response.is_incomplete:
        # The body ended normally but the response did not, so an intermediary closed it early.
        return End(end.time_ns, "upstream_error", "stream_truncated")
    return End(last_ns, "complete")
