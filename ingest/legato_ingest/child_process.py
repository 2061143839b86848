"""A child process of `legato serve` that answers pickled messages over its pipes, one answer for each message.

Python runs one thread of a process at a time, so work that would delay every acknowledgement is done in a process apart. The module
starts such a process and reads and writes its messages. What the process does is in the module that it runs. The process of the embedded
store has several connections and is started by ``storage.store_process``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import subprocess
import sys
from typing import IO, Any

__all__ = ["pipes", "read", "start", "write"]

# Messages of some MB pass a pipe of this size with few changes between the processes.
_PIPE_BYTES = 1_048_576


def start(module: str) -> subprocess.Popen[bytes]:
    """Start a process that runs a module. It ends when its standard input is closed. Raises ``OSError``."""
    process = subprocess.Popen(
        # -P: the working folder is no place for modules.
        [sys.executable, "-P", "-m", "legato_ingest.lean", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )
    for pipe in (process.stdin, process.stdout):
        # The kernel limits the size of all pipes of a user together; a small pipe works, too. Only Linux has the call.
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[arg-type]
    return process


def pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return the pipe of messages and the pipe of answers of this process. Call it once, in the process that was started."""
    # A signal to the process group is for the parent, which finishes its work first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    # Anything that prints writes to the log.
    os.dup2(2, 1)
    return sys.stdin.buffer, answers


def write(pipe: IO[bytes], message: object) -> None:
    """Write a message. Raises ``OSError``, and what pickling raises."""
    # Straight into the pipe: a message of some MB is never in memory as a whole.
    pickle.dump(message, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def read(pipe: IO[bytes]) -> Any:
    """Return the next message. Raises ``EOFError`` at the end, also within a message."""
    try:
        # Only this program, as parent or child, writes into the pipe.
        return pickle.load(pipe)
    except (pickle.UnpicklingError, AttributeError, ImportError, IndexError, KeyError, ValueError) as error:
        raise EOFError("the other process ended within a message") from error
