"""The processor time at /metrics: that of the process and of its children."""

from __future__ import annotations

import subprocess
import sys

from helpers.servers.waiting import until
from legato_ingest.metrics import Metrics

BUSY = "import time; [None for _ in iter(lambda: time.process_time() < 0.5, False)]; print(flush=True); input()"


def test_the_processor_time_of_children_counts_once() -> None:
    """While a child runs, after it has ended, and after it was waited for; the counter never falls."""
    metrics = Metrics()

    def spent() -> float:
        return metrics.registry.get_sample_value("legato_cpu_seconds_total") or 0.0

    before = spent()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = spent()
        child.kill()
        until(lambda: child.poll() is not None)
    ended = spent()
    assert 0.45 < running - before < 2 and 0 <= ended - running < 1
