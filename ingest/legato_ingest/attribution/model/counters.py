"""Growth of sampled counters. `definitions.counter_growth` has it in SQL."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["grown"]

Floats = NDArray[np.float64]


def grown(values: Floats) -> Floats:
    """Return by how much a counter has grown at each sample since the first one.

    A counter that falls was reset. What it counted before stays counted; what it counted between the reset and the next sample is not known
    to belong to this stretch of time, so it is left out.
    """
    return np.asarray(np.cumsum(np.maximum(np.diff(values, prepend=values[:1]), 0.0)), np.float64)
