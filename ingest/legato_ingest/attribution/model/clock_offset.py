"""How far the clock of an engine's records is from the clock of its server.

One idea: a request's last token is recorded and sent by the same front end within a fraction of a millisecond, also when the front end was
late for both. So the finished requests give the offset, a sample each, whatever the clocks say; the soonest tenth of them is taken, as a
send may wait but cannot come before its token; by how much some came sooner still says how far that may be off. It never compares a
client's clock with anything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["shift_of"]

# Of many, the very soonest hundredth is no sample of this: a name used twice, a clock that was set. Few do not say how far they are off.
_SOONEST, _STRAYS, _FEW = 0.1, 0.01, 30


def shift_of(last_send_ns: NDArray[np.int64], recorded_ns: NDArray[np.int64]) -> tuple[int, int | None] | None:
    """Records' clock minus the server's, and by how much it may be more (``None``: nobody knows), ns; from each finished request's last
    send and its last step's record; ``None`` without one.
    """
    if not len(last_send_ns):
        return None
    samples = np.sort(recorded_ns - last_send_ns)
    taken, soonest = (int(samples[min(len(samples) - 1, int((1 - share) * len(samples)))]) for share in (_SOONEST, _STRAYS))
    return taken, soonest - taken if len(samples) >= _FEW else None
