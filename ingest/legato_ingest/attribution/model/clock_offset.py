"""The offset between the clock of an engine's records and another clock.

One front end records the last token of a request and sends it within a fraction of a millisecond, also when the front end is late for
both. So every finished request gives one sample of the offset. A send may wait, but it cannot precede its token, so the estimate is taken
from the largest tenth of the samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["clock_offset"]

# The share of samples above the estimate, and above the upper end of its error. The largest hundredth are outliers: a request id that was
# used twice, a clock that was set.
_ESTIMATE, _OUTLIERS = 0.1, 0.01
# With fewer samples the error is unknown.
_ERROR_SAMPLES_MIN = 30


def clock_offset(last_send_ns: NDArray[np.int64], recorded_ns: NDArray[np.int64]) -> tuple[int, int | None] | None:
    """Return the records' clock minus the other clock, and how much larger the true offset may be (``None``: unknown), in ns.

    ``last_send_ns``: the send (or arrival) of the chunk of each finished request's last step, also without content; ``recorded_ns``: the
    record of that step. Without any request the result is ``None``.
    """
    if not len(last_send_ns):
        return None
    samples = np.sort(recorded_ns - last_send_ns)
    offset, upper = (int(samples[min(len(samples) - 1, int((1 - share) * len(samples)))]) for share in (_ESTIMATE, _OUTLIERS))
    return offset, upper - offset if len(samples) >= _ERROR_SAMPLES_MIN else None
