"""Real processes related like those of an engine: a listening server, its child and its grandchild."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Family", "family"]

# The child inherits the socket and keeps it, the grandchild closes it. All end when their input is closed, the server last.
_PROGRAM = """
import contextlib, os, select, socket, sys
burns = sys.argv[1:] == ["burn"]
if burns:
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
os.write(1, b"%d\\n" % listener.getsockname()[1])
for generation in range(3):
    # Before the PID is written: a test looks at the sockets as soon as it knows all PIDs.
    if generation == 2:
        listener.close()
    os.write(1, b"%d\\n" % os.getpid())
    if generation == 2 or os.fork():
        break
while not select.select([0], [], [], 0 if burns else None)[0]:
    sum(range(20_000))
with contextlib.suppress(ChildProcessError):
    os.wait()
"""


@dataclass(frozen=True)
class Family:
    """The port and the three PIDs: the process that opened the socket, its child, and its grandchild."""

    port: int
    pids: tuple[int, ...]
    process: subprocess.Popen[str]

    def end(self) -> None:
        """End all processes and wait for them."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


@contextlib.contextmanager
def family(*, burn: bool = False) -> Iterator[Family]:
    """Start the processes; with ``burn`` all of them compute on one CPU."""
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, *(["burn"] if burn else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, *pids = (int(process.stdout.readline()) for _ in range(4))
        each = Family(port, tuple(pids), process)
        try:
            yield each
        finally:
            each.end()
