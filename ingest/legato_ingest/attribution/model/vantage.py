"""One stream as its vantages recorded it: the times of its content chunks, their sizes and holds, and what its socket held.

The module converts the columns of a stored stream. It matches no chunks and computes no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from legato_ingest.definitions import CONTENT_KINDS, HOLD_STEP_US

__all__ = ["UNKNOWN_PROCESS", "SocketSamples", "Stream", "Vantage"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNKNOWN_PROCESS = -1
"""The start of a process if it is not known which process served a stream."""

_HOLD_STEP_NS = 1000 * HOLD_STEP_US
# Data lay unread if it arrived earlier before the read than this share of the gap, and than the resolution of the kernel's clock.
_IDLE_SHARE, _IDLE_MS_MIN = 0.02, 4


def _none() -> Ints:
    return np.zeros(0, np.int64)


# Whether chunks of a kind (0 to 255) are content.
_IS_CONTENT = np.isin(np.arange(256), CONTENT_KINDS)


@dataclass(frozen=True, slots=True)
class SocketSamples:
    """The state of the client's socket just before some reads.

    ``at`` are indices of chunks. The other columns are as in schema/TIMELINE.md: the value plus one, 0 where it is unknown.
    """

    at: Ints
    queued_bytes: Ints
    window_bytes: Ints
    idle_ms: Ints

    def unread(self, dt_us: Ints) -> Ints:
        """Return the indices of the chunks before which data lay unread: more than the rest of the receive window, or for some time.

        After a packet loss all data arrives at once. Then the last data has only just arrived, and the window has its full size.
        """
        at = self.at[self.at < len(dt_us)]
        queued, window, idle = (values[: len(at)] for values in (self.queued_bytes, self.window_bytes, self.idle_ms))
        is_full = (window > 0) & (queued > window)
        is_old = 1000 * (idle - 1) > np.maximum(_IDLE_SHARE * dt_us[at], 1000 * _IDLE_MS_MIN)
        return np.asarray(at[is_full | is_old])


@dataclass(frozen=True, slots=True)
class Vantage:
    """The content chunks of one stream at one vantage, in order.

    ``times_ns``: ns since the epoch by the vantage's clock. ``sizes``: bytes of content, empty if unknown. ``holds_ns``: how long the
    application held each chunk, empty if unknown. ``sampled``: indices of the chunks with a socket sample before their read; ``unread``:
    those of them before which data lay unread in the socket. ``is_cut``: the record lacks the stream's end, such as that of a client that
    cancelled.
    """

    times_ns: Ints
    sizes: Ints
    holds_ns: Ints
    unread: Ints = field(default_factory=_none)
    sampled: Ints = field(default_factory=_none)
    is_cut: bool = field(default=False, kw_only=True)

    @classmethod
    def of(
        cls,
        start_ns: int,
        dt_us: Ints,
        kinds: Ints,
        sizes: Ints,
        holds: Ints,
        sockets: SocketSamples | None = None,
        *,
        is_cut: bool = False,
    ) -> Vantage:
        """Convert the arrays of a stored row, which hold all chunks; ``holds`` is in units of 64 µs."""
        is_content = _IS_CONTENT[kinds]
        times = start_ns + 1000 * np.cumsum(dt_us)
        unread = sampled = _none()
        if sockets is not None:
            unread, sampled = sockets.unread(dt_us), sockets.at[sockets.at < len(dt_us)]
        rank = np.cumsum(is_content) - 1
        return cls(
            times_ns=times[is_content],
            sizes=sizes[is_content] if len(sizes) else sizes,
            holds_ns=_holds_of_content(_HOLD_STEP_NS * holds, is_content) if len(holds) else holds,
            unread=rank[unread[is_content[unread]]],
            sampled=rank[sampled[is_content[sampled]]],
            is_cut=is_cut,
        )


def _holds_of_content(holds_ns: Ints, is_content: Bools) -> Ints:
    """Return how long the application held each content chunk together with the chunks without content that follow it."""
    at = np.flatnonzero(is_content)
    return np.add.reduceat(holds_ns, at) if len(at) else holds_ns[:0]


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream with at least one long gap, at the vantage that is judged, and the same stream at its server if the server was recorded.

    ``judged``: the client's chunks; ``server``: the server's, if they were recorded. Of a stream that no client recorded, the gaps of its
    server are judged: ``vantage`` is then ``server``, and ``judged`` and ``server`` are the same. ``clock`` identifies the clock of the
    judged times, as far as it is known; streams with the same value share a clock. ``server_boot`` identifies the host and boot of the
    server's clock, empty if unknown. ``is_open``: the stream is running, and its last gap, which alone is known, has not ended.
    ``called``: what the request was sent to, as provider, address and port, each as far as it is known. ``engine_epoch_ns``: the start of
    the process that served the stream, if several processes at a time have the id of the engine, else 0; ``UNKNOWN_PROCESS``: any of
    them, or any data-parallel rank of the server with this id.
    """

    tenant: str
    start_ns: int
    trace_id: bytes
    span_id: bytes
    judged: Vantage
    server: Vantage | None
    engine_id: str
    response_id: str
    clock: str
    server_boot: str = ""
    vantage: str = "client"
    is_open: bool = False
    called: tuple[str, str, int | None] = ("", "", None)
    engine_epoch_ns: int = 0

    @property
    def has_client(self) -> bool:
        """Whether a client recorded the stream."""
        return self.vantage == "client"

    @property
    def first_ns(self) -> int:
        """The time of the first content at the server, else at the judged vantage, else the start of the request."""
        times = (self.server or self.judged).times_ns
        return int(times[0]) if len(times) else self.start_ns

    @property
    def last_ns(self) -> int:
        """The time of the last content at the server, else at the judged vantage, else the start of the request."""
        times = (self.server or self.judged).times_ns
        return int(times[-1]) if len(times) else self.start_ns
