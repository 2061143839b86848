"""The worker thread: garbage collection within it, streams that it ends, and what it forgets."""

from __future__ import annotations

import os
import subprocess
import sys

COLLECTS = """
import gc, faulthandler, time
import legato
from legato._worker import worker
faulthandler.dump_traceback_later(10, exit=True)
class Knot: pass
gc.set_threshold(1)
gc.disable()
running = legato.stream(model="m")
time.sleep(0.3)
knot = Knot(); knot.itself = knot; knot.recorder = legato.stream(model="m")
del knot
# Only the worker runs now, so the collection is in its thread.
gc.enable()
time.sleep(0.8)
running.end()
assert worker().flush(5)
print(legato.stats()["started"], legato.stats()["ended"])
"""


def test_a_collection_within_the_worker_does_not_block_it() -> None:
    """Recorders in reference cycles are freed wherever a collection runs, also while the worker takes a stream from its queue."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    done = subprocess.run([sys.executable, "-c", COLLECTS], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["2", "2"], done.stderr
