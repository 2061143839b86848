"""An application with greenlets instead of threads: `green_application.py gevent|eventlet SERVER OTLP`.

Greenlets read streams at the same time, while a program is run. Then the process is forked with an unsent stream and an open connection,
and the child reads streams, too. The last line that is printed is the number of streams that the process began; each process prints one.
"""

from __future__ import annotations

import sys

if sys.argv[1] == "gevent":
    from gevent import monkey, spawn

    monkey.patch_all()
else:
    import eventlet

    eventlet.monkey_patch()
    spawn = eventlet.spawn

import os
import subprocess
import threading
import time

import httpx

import legato

legato.configure(sys.argv[3], service_name="workers")
legato.instrument_httpx()
GREENLETS = 10


def read(model: str) -> None:
    """Read one stream to its end."""
    with httpx.stream("POST", sys.argv[2] + "/chat/completions", json={"model": model, "messages": [], "stream": True}) as response:
        response.read()


def main() -> None:
    """Read streams in all ways."""
    ended = threading.Semaphore(0)

    def work(number: int) -> None:
        read(f"greenlet-{number}")
        ended.release()

    for number in range(GREENLETS):
        spawn(work, number)
    subprocess.run(["true"], check=True)
    for _ in range(GREENLETS):
        ended.acquire()
    assert legato.flush()
    read("parent-0")
    child = os.fork()
    if not child:
        for number in range(4):
            read(f"child-{number}")
            # The interval of the exports passes, at which the copy of the parent's thread wakes up.
            time.sleep(0.3)
    else:
        os.waitpid(child, 0)
    print(legato.stats()["started"], flush=True)
    if not child:
        os._exit(0)


if __name__ == "__main__":
    main()
