"""Eight threads that record streams at the same time: `threads_application.py OTLP`. It runs under any Python, also one without a GIL.

Every stream is recorded by two threads, while snapshots are taken and `stats` and `flush` are called. It prints one JSON object: what
`flush` returned, the counters, the number of streams and of the chunks of each, and whether this Python has a GIL.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

os.environ |= {"LEGATO_SNAPSHOT_INTERVAL_MS": "20", "LEGATO_EXPORT_INTERVAL_MS": "100"}

import legato

THREADS, STREAMS, CHUNKS = 8, 12, 4000


def chunks(recorder: legato.StreamRecorder) -> None:
    """Record chunks, and the time that each was held."""
    for _ in range(CHUNKS):
        recorder.record(3, 1)
        recorder.held(1)


def stream(number: int) -> None:
    """Record one stream in this thread and in another."""
    with legato.stream(model=f"m-{number}") as recorder:
        other = threading.Thread(target=chunks, args=(recorder,))
        other.start()
        chunks(recorder)
        other.join()


def main() -> None:
    """Record all streams, with a thread that reads the counters meanwhile."""
    # A switch at nearly each instruction finds races that a GIL otherwise hides.
    sys.setswitchinterval(1e-5)
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            legato.stats()
            legato.flush(0.01)

    looking = threading.Thread(target=look)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: legato.configure(sys.argv[1], service_name="threads"), range(THREADS)))
        looking.start()
        list(pool.map(stream, range(STREAMS)))
    over.set()
    looking.join()
    flushed = legato.flush(30)
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(json.dumps({"flushed": flushed, "stats": dict(legato.stats()), "streams": STREAMS, "chunks": 2 * CHUNKS, "has_gil": has_gil}))


if __name__ == "__main__":
    main()
