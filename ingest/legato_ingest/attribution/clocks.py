"""How far the clock of an engine's records is from the clock of its server.

One idea: a request's last token is recorded and sent by the same front end within a fraction of a millisecond, also when the front end was
late for both. So the finished requests give the offset, a sample each, whatever the clocks say; the soonest tenth of them is taken, as a
send may wait but cannot come before its token. It never compares a client's clock with anything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["shift_of"]

_SOONEST = 0.1


def shift_of(last_send_ns: NDArray[np.int64], recorded_ns: NDArray[np.int64]) -> int | None:
    """Records' clock minus the server's, ns, from each finished request's last send and its last step's record; ``None`` without one."""
    if not len(last_send_ns):
        return None
    samples = np.sort(recorded_ns - last_send_ns)
    return int(samples[min(len(samples) - 1, int((1 - _SOONEST) * len(samples)))])
