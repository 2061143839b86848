"""Match the chunks of a stream between its vantages, and with the engine steps that produced them.

Chunks at two vantages are matched by their index among the content chunks, or, where the vantages divide the content differently, by the
byte at which they begin; never by time. Steps are matched by time on one clock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.vantage import Vantage

__all__ = ["server_chunks", "server_from_steps", "steps_of_chunks"]

Ints = NDArray[np.int64]

# A chunk may seem to arrive before the record of its step by this share of a median step, as the shortest delivery time is not known
# better.
_EARLY_SHARE = 0.35


def server_chunks(client: Vantage, server: Vantage | None, chunks: Ints) -> Ints:
    """Return the index at the server of each of the client's ``chunks`` (indices); -1 if it cannot be determined."""
    unknown = np.full(len(chunks), -1, np.int64)
    if server is None or not len(server.times_ns):
        return unknown
    client_count, server_count = len(client.times_ns), len(server.times_ns)
    if client_count == server_count or (client_count < server_count and not len(client.sizes)):
        return np.where(chunks < server_count, chunks, -1)
    if len(client.sizes) and len(server.sizes):
        begins = np.cumsum(client.sizes)[chunks] - client.sizes[chunks]
        ends = np.cumsum(server.sizes)
        if client_count > server_count and ends[-1] != client.sizes.sum():
            return unknown
        found = np.searchsorted(ends, begins, "right")
        return np.where(found < server_count, found, -1)
    return unknown


def steps_of_chunks(times_ns: Ints, ready_ns: Ints, last_step: int = -1) -> Ints:
    """Return the index of the step that produced each chunk; negative if there is none.

    ``times_ns``: when each chunk was present. ``ready_ns``: when the output of each step was ready, ascending, by the same clock.
    ``last_step``: the index of the step that ended the request (-1: unknown). Each chunk belongs to the latest step that was ready, no two
    chunks to the same step. So chunks that were kept and arrived together belong to consecutive steps, one each.
    """
    latest = np.searchsorted(ready_ns, times_ns, "right") - 1
    if last_step >= 0:
        latest = np.minimum(latest, last_step)
    ranks = np.arange(len(latest))
    return np.asarray(np.minimum.accumulate((latest - ranks)[::-1])[::-1] + ranks)


def server_from_steps(client: Vantage, recorded_ns: Ints, clock_offset_ns: int, last_step: int) -> Vantage:
    """Return the times at which a server that was not recorded sent the chunks, concluded from the records of the engine's steps.

    ``last_step``: the index of the step that ended the request (-1: unknown). ``clock_offset_ns``: the records' clock minus the client's,
    assuming that the fastest delivery took no time.
    """
    recorded = np.maximum.accumulate(recorded_ns)
    early = int(_EARLY_SHARE * np.median(np.diff(recorded))) if len(recorded) > 1 else 0
    steps = steps_of_chunks(client.times_ns + clock_offset_ns + early, recorded, last_step)
    return Vantage(recorded[np.maximum(steps, 0)], client.sizes, client.holds_ns)
