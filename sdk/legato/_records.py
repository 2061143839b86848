"""What is known about a stream besides its chunks: where it comes from, how it ended, and its chunks as columns."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Columns", "End", "Origin", "listed", "outcome_of"]

_Value = TypeVar("_Value")

_CANCEL_CLASSES = ("CancelledError", "GeneratorExit", "KeyboardInterrupt", "Cancelled")


@dataclass(slots=True)
class Origin:
    """Where a stream comes from: model, endpoints, engine, client. Some fields are filled in while the stream runs."""

    vantage: str = "client"
    model: str = ""
    provider: str = ""
    transport: str = "iterator"
    route: str = ""
    engine_id: str = ""
    conversation_id: str = ""
    client_hash: str = ""
    client_address: str = ""
    client_port: int = 0
    server_address: str = ""
    server_port: int = 0
    is_start_known: bool = True
    """Whether the stream starts with its request. If not, times from the request are unknown."""
    anchor_ns: int = 0
    """Wall time minus monotonic time, from the start of the stream's span on."""

    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a monotonic time to a wall time in ns since the epoch."""
        return monotonic_ns + self.anchor_ns


@dataclass(frozen=True, slots=True)
class End:
    """How and when (monotonic time) a stream ended."""

    time_ns: int
    outcome: str
    error_type: str = ""


@dataclass(slots=True)
class Columns:
    """A stream's chunks by column: one value per chunk; ``None`` is an unknown column.

    ``times``: monotonic ns. ``holds_ns``: consumer time. ``dropped``: number of chunks above the limit, which are not in the columns.
    ``probes``: one per probed read: its time, the bytes in the receive queue before it, and ms since data had last arrived.
    """

    times: list[int]
    sizes: list[int]
    tokens: list[int] | None
    kinds: list[int]
    holds_ns: list[int] | None
    dropped: int
    probes: list[tuple[int, int, int]]


def listed(values: deque[_Value]) -> list[_Value]:
    """Copy a deque to which other threads append. Without a GIL, an append may disturb the copying, which then starts again."""
    while True:
        try:
            return list(values)
        except RuntimeError:
            continue


def outcome_of(error: BaseException) -> tuple[str, str]:
    """Return (outcome, error type) of a stream that this exception ended.

    Cancels and time-outs are recognised by the names of the exception's classes, so that no HTTP library need be imported.
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    if any(name in _CANCEL_CLASSES for name in names):
        return "client_cancel", ""
    qualified = f"{type(error).__module__}.{type(error).__qualname__}"
    if "RpcError" in names:
        return _outcome_of_rpc(error, qualified)
    if any("Timeout" in name for name in names):
        return "timeout", qualified
    return "upstream_error", qualified


def _outcome_of_rpc(error: BaseException, qualified: str) -> tuple[str, str]:
    """Return the same for an error of gRPC: all its errors have one class and differ in their status."""
    try:
        status = str(error.code().name)  # type: ignore[attr-defined]
    except Exception:
        return "upstream_error", qualified
    if status == "CANCELLED":
        return "client_cancel", ""
    return "timeout" if status == "DEADLINE_EXCEEDED" else "upstream_error", f"grpc.{status}"
