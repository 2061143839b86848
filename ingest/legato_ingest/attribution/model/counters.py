"""Counters that a node samples, as all that read them take them.

One idea: a counter that falls began anew, and what it had counted before is not given back; an engine's are told under the id of its
server. It reads nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from legato_ingest.storage.sql import quoted_all

__all__ = ["grown", "server_of", "told_under"]


def grown(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much a counter has grown at each sample since the first."""
    return np.asarray(np.cumsum(np.maximum(np.diff(values, prepend=values[:1]), 0.0)), np.float64)


def told_under(engine_id: str) -> str:
    """The ids under which an engine's processes and GPUs are told, as a list in SQL: ranks behind one server share its processes."""
    return quoted_all(sorted({engine_id, server_of(engine_id)}))


def server_of(engine_id: str) -> str:
    """The id of the server that this engine is behind: ranks are told under it, a slash and their number. Its own where it is none."""
    server, slash, rank = engine_id.rpartition("/")
    return server if slash and rank.isdecimal() else engine_id
