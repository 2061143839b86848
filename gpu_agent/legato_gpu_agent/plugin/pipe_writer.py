"""The plugins' end of the pipe. It never blocks and never raises.

A datagram that does not fit, or is sent while there is no pipe, goes into a bounded backlog, which is sent first and in order at the next
call. Beyond the bound the oldest datagram is dropped and counted. A pipe that another user could read is never written to: it is logged,
and looked at again each second. The module uses the standard library only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable

from legato_gpu_agent.plugin.pipe import CAPACITY_BYTES, PipeRefused, file_id, open_pipe, open_to_others
from legato_gpu_agent.plugin.protocol import split_datagrams

__all__ = ["PipeWriter"]

_log = logging.getLogger("legato")
BACKLOG_MAX = 1024
# Datagrams of the backlog that one call may send: bounds the time that a step can lose after an agent was away.
_BURST_MAX = 16
_CHECK_EVERY_S = 1.0
# Another user can change what is found in a folder for all, so the number of texts is limited.
_WARNINGS_MAX = 10


class PipeWriter:
    """Sends datagrams into the pipe at ``path``. ``dropped`` counts lost datagrams. Not safe for several threads at once."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        self.path, self._clock = path, clock
        self._backlog: deque[bytes] = deque()
        self._pipe: int | None = None
        self._pipe_id = (0, 0)
        self._next_check_s = float("-inf")
        self._warned: set[str] = set()

    def send(self, datagram: bytes) -> bool:
        """Send a datagram now or with a later call; return whether the backlog is empty."""
        if not self._backlog and self._clock() < self._next_check_s and self._write(datagram):
            return True
        self._keep(datagram)
        return self.flush()

    def flush(self) -> bool:
        """Send up to 16 datagrams of the backlog; return whether it is empty."""
        if self._clock() >= self._next_check_s:
            self._check_pipe()
        for _ in range(min(_BURST_MAX, len(self._backlog))):
            if not self._write(self._backlog[0]):
                break
            self._backlog.popleft()
        return not self._backlog

    def close(self) -> None:
        """Close the pipe; the backlog is lost."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            # Other code of the process may have closed the descriptor, as when it becomes a daemon.
            with contextlib.suppress(OSError):
                os.close(pipe)

    def _write(self, datagram: bytes) -> bool:
        """Return whether the datagram is in the pipe."""
        if self._pipe is None:
            return False
        try:
            os.write(self._pipe, datagram)
            return True
        except BlockingIOError:
            # The pipe is full: the datagram stays in the backlog.
            return False
        except OSError:
            # The descriptor is unusable: the next check, within a second, opens the pipe again.
            self.close()
            return False

    def _keep(self, datagram: bytes) -> None:
        if len(self._backlog) >= BACKLOG_MAX:
            self._backlog.popleft()
            self.dropped += 1
        self._backlog.append(datagram)

    def _check_pipe(self) -> None:
        """Open the pipe, or the new one if an agent replaced it at this path."""
        self._next_check_s = self._clock() + _CHECK_EVERY_S
        try:
            if self._pipe is not None and file_id(os.fstat(self._pipe)) != self._pipe_id:
                # Other code closed the descriptor, and its number now belongs to another file.
                self._pipe = None
            found = os.lstat(self.path)
            if self._pipe is not None and file_id(found) == self._pipe_id:
                if not open_to_others(found):
                    return
                self.close()
            pipe = open_pipe(self.path)
        except FileNotFoundError:
            # No agent has run yet, or the folder was removed: an agent that runs makes the pipe again, and reads this one until then.
            if self._pipe is None:
                self._warn_once(f"there is no pipe at {self.path}: start legato-gpu-agent, or set LEGATO_ENGINE_PIPE to its pipe")
            return
        except PipeRefused as refused:
            self._warn_once(str(refused))
            return
        except OSError as error:
            self._warn_once(f"{self.path} cannot be opened ({error.strerror}): run the agent and the engine as the same user")
            return
        before, self._pipe, self._pipe_id = self._pipe, pipe, file_id(os.fstat(pipe))
        if before is not None:
            self._move(before)

    def _warn_once(self, found: str) -> None:
        if found not in self._warned and len(self._warned) < _WARNINGS_MAX:
            self._warned.add(found)
            _log.warning("Legato: engine steps are not sent, and the engine is not affected: %s (checked each second, logged once)", found)

    def _move(self, before: int) -> None:
        """Move all datagrams, those of other writers included, from the replaced pipe into the new one: no agent reads the old one."""
        with contextlib.suppress(OSError):
            held = deque(split_datagrams(os.read(before, CAPACITY_BYTES)))
            while held and self._write(held[0]):
                held.popleft()
            while held and len(self._backlog) < BACKLOG_MAX:
                self._backlog.appendleft(held.pop())
            self.dropped += len(held)
        with contextlib.suppress(OSError):
            os.close(before)
