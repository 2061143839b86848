"""The process that has the embedded store of `legato serve` open, so that no statement of a reader can stop the process that receives.

ClickHouse's engine cannot interrupt every function, and does not count all memory: a reader's statement that takes longer than
``read_seconds_max``, or with which the process grows by more than one and a half ``read_bytes_max``, ends the process of the store. It is
started again at once. Calls that were under way raise ``StoreRestarting``; requests go on being acknowledged, because they are in the
write-ahead log. The statements themselves run in ``store_process_main``.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from legato_ingest.errors import LegatoError, QueryEnded, StoreRestarting, StoreUnavailable
from legato_ingest.storage.process_memory import MemoryAtRest, anonymous_bytes
from legato_ingest.storage.store import ReadLimits

__all__ = ["StoreProcess"]

# -P: the working folder is no place for modules.
_COMMAND = ("-P", "-m", "legato_ingest.lean", "legato_ingest.storage.store_process_main")
# How often memory and time are checked while statements of readers run: an engine that fills memory takes 80 MB in this time.
_WATCH_S = 0.02
# After a failed start, the process is started again at the earliest after this time.
_RETRY_S = 1.0
# After so many crashes within a minute, the next start waits for 2, 4, 8 s and so on, and for this time at most.
_CRASHES_MAX, _CRASHES_S, _PAUSE_MAX_S = 3, 60.0, 30.0
# A call waits for a start for so long.
_START_S = 30.0
# A store that was open is opened again so many times before the calls fail that wait for it: the kernel may end a process at its start.
_STARTS_MAX = 3
# The engine has so long to close its files.
_CLOSE_S = 30.0
# ClickHouse's codes: TIMEOUT_EXCEEDED, MEMORY_LIMIT_EXCEEDED, and ABORTED, with which the engine refuses everything after a fault.
_TIMEOUT, _MEMORY, _ABORTED = 159, 241, 236
# Signals of a fault in the process; others come from outside. The process has ended so long after its connections have closed.
_FAULTS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS))
_EXIT_S = 1.0

_Request = tuple[int, str, tuple[object, ...]]
"""The handle of a store, a method of it, and the arguments."""
_Channel = Connection


@dataclass(slots=True, eq=False)
class _Running:
    """A process, the socket over which it gets its connections, and the connections that no call uses."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    idle: list[_Channel] = field(default_factory=list)
    at_rest: MemoryAtRest = field(default_factory=MemoryAtRest)
    # Whether it had much more memory than at rest when it was last watched.
    is_grown: bool = False
    # Returns the error of a call that was under way when the process ended.
    restarting: Callable[[], StoreRestarting] = lambda: _restarting(())

    def connected(self) -> _Channel:
        """Open a connection: one end is sent to the process."""
        own, other = socket.socketpair()
        with other:
            socket.send_fds(self.control, [b"c"], [other.fileno()])
        return Connection(own.detach())

    def kill(self) -> None:
        """End the process without waiting for it."""
        self.process.kill()
        self.control.close()
        for connection in self.idle:
            connection.close()
        self.idle.clear()

    def end(self, wait_s: float = 0.0) -> int:
        """End the process: it has so long to end by itself. Return its exit status, negative for a signal."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(wait_s)
        self.kill()
        return self.process.wait()


@dataclass(slots=True, eq=False)
class _Read:
    """A statement of a tenant's reader that runs, and why the process was ended because of it."""

    tenant: str
    until_s: float
    reason: QueryEnded | None = None


class StoreProcess:
    """The process that has the store at ``path`` open. Raises what opening the store raises.

    ``inherited``: descriptors that the process keeps open, so that the lock of the store lasts as long as the process. ``ended`` is called
    with the reason each time the process ended unasked: ``memory``, ``time`` or ``crash``.
    """

    def __init__(
        self,
        path: pathlib.Path,
        read_limits: ReadLimits,
        *,
        read_seconds_max: float,
        read_bytes_max: int,
        inherited: Sequence[int] = (),
        ended: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._opening = (str(path), dict(read_limits))
        self._read_seconds_max, self._read_bytes_max = read_seconds_max, read_bytes_max
        self._inherited, self._ended = tuple(inherited), ended
        self._running: _Running | None = None
        # Killed, and perhaps not gone: it may still have the folder of the store open.
        self._killed: list[_Running] = []
        self._reads: set[_Read] = set()
        self._failed: tuple[float, Exception] | None = None
        # Starts since the store was open that did not open it, and when the process crashed.
        self._failures, self._was_open = 0, False
        self._crashes: deque[float] = deque(maxlen=16)
        # Calls of Legato that run, and the process that opens the store.
        self._own = 0
        self._starting: _Running | None = None
        self._closing = False
        self._changed = threading.Condition()
        # The kernel ends the process with the thread that started it, so this thread lives as long as the store.
        self._thread = threading.Thread(target=self._keep, name="legato-store", daemon=True)
        self._thread.start()
        try:
            self._give_back(*self._connection(wait_s=float("inf")))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id; 0 while there is no process."""
        running = self._running
        return running.process.pid if running is not None else 0

    def call(self, handle: int, method: str, *arguments: object) -> Any:
        """Run a method of the store with this handle. Raises what it raises, or ``StoreRestarting`` if the process ends meanwhile."""
        running, connection = self._connection()
        with self._changed:
            self._own += 1
        try:
            return self._exchange(running, connection, (handle, method, arguments))
        finally:
            with self._changed:
                self._own -= 1

    def read(self, handle: int, tenant: str, method: str, *arguments: object) -> Any:
        """Run a statement of a tenant's reader like ``call``, and watch its time and memory. Raises ``QueryEnded`` beyond the limits."""
        running, connection = self._connection()
        with self._watched(running, tenant) as read:
            try:
                return self._exchange(running, connection, (handle, method, arguments))
            except StoreRestarting as error:
                raise (read.reason or error) from None

    def close(self) -> None:
        """End the process, after the engine has closed its files. Further calls raise ``StoreUnavailable``."""
        with self._changed:
            self._closing = True
            if self._starting is not None:
                self._starting.process.kill()
            self._changed.notify_all()
        self._thread.join()

    @contextlib.contextmanager
    def _watched(self, running: _Running, tenant: str) -> Iterator[_Read]:
        read = _Read(tenant, time.monotonic() + self._read_seconds_max)
        with self._changed:
            running.at_rest.add(anonymous_bytes(running.process.pid))
            self._reads.add(read)
            self._changed.notify_all()
        try:
            yield read
        finally:
            with self._changed:
                self._reads.discard(read)

    def _exchange(self, running: _Running, connection: _Channel, request: _Request) -> Any:
        try:
            is_result, value = _answer(connection, request)
        except (EOFError, OSError) as error:
            connection.close()
            with self._changed:
                self._end(running, "crash")
            raise running.restarting() from error
        if not is_result and value[1][1:] == (_ABORTED,):
            connection.close()
            with self._changed:
                self._end(running, "crash", is_fault=True)
            raise running.restarting()
        self._give_back(running, connection)
        return _result(is_result, value)

    def _connection(self, wait_s: float = _START_S) -> tuple[_Running, _Channel]:
        """A connection to the process, which is started if it does not run. Raises the error of the start."""
        until_s = time.monotonic() + wait_s
        with self._changed:
            if self._running is not None and self._running.process.poll() is not None:
                self._end(self._running, "crash")
            while self._running is None:
                if self._closing:
                    raise StoreUnavailable("the store is closed")
                if time.monotonic() > until_s:
                    raise StoreUnavailable("the process of the store is being started: retry")
                if self._failed is not None and time.monotonic() - self._failed[0] < _RETRY_S:
                    raise self._failed[1]
                self._changed.wait(_RETRY_S)
            running = self._running
            try:
                return running, running.idle.pop() if running.idle else running.connected()
            except OSError as error:
                if running.process.poll() is None:
                    raise StoreUnavailable(f"no connection to the process of the store: {error}") from error
                raise _restarting(()) from error

    def _give_back(self, running: _Running, connection: _Channel) -> None:
        with self._changed:
            if running is self._running:
                running.idle.append(connection)
                return
        connection.close()

    def _end(self, running: _Running, reason: str, *, is_fault: bool = False) -> None:
        """Kill the process, so that the thread starts another one. The caller holds ``_changed``."""
        if running is not self._running:
            return
        if reason == "crash":
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Its connections close just before it has ended.
                number = -running.process.wait(_EXIT_S)
                # Where memory is short, the kernel kills the process before the watch sees its growth as one beyond the limit.
                is_fault = is_fault or number in _FAULTS or (number == signal.SIGKILL and running.is_grown)
        running.kill()
        running.restarting = partial(_restarting, self._tenants(), is_fault=is_fault)
        self._running = None
        self._killed.append(running)
        if reason == "crash":
            self._crashes.append(time.monotonic())
        self._ended(reason)
        self._changed.notify_all()

    def _keep(self) -> None:
        """Start the process when there is none, watch the statements of readers, and end the process at the end."""
        with self._changed:
            while not self._closing:
                if self._running is None:
                    self._start()
                elif self._reads:
                    self._watch(self._running)
                    self._changed.wait(_WATCH_S)
                else:
                    self._changed.wait()
            running, self._running = self._running, None
            killed, self._killed = self._killed, []
        if running is not None:
            running.end(_CLOSE_S)
        for each in killed:
            each.end()

    def _start(self) -> None:
        """Start the process and open the store in it. The caller holds ``_changed``; it is released meanwhile."""
        if (pause_s := self._pause_s()) > 0:
            self._changed.wait(pause_s)
            return
        killed, self._killed = self._killed, []
        self._changed.release()
        started, failed = None, None
        try:
            for each in killed:
                each.end()
            started = self._started()
        except Exception as error:
            known = error if isinstance(error, LegatoError) else StoreUnavailable(f"the process of the store cannot be started: {error}")
            failed = (time.monotonic(), known)
        finally:
            self._changed.acquire()
            self._starting = None
            self._failures = 0 if started is not None else self._failures + 1
            self._was_open |= started is not None
            self._running, self._failed = started, failed if not self._was_open or self._failures > _STARTS_MAX else None
            self._changed.notify_all()

    def _pause_s(self) -> float:
        """Return the seconds until the process may be started."""
        now_s = time.monotonic()
        pause_s = self._failed[0] + _RETRY_S - now_s if self._failed is not None else 0.0
        crashes = sum(now_s - at_s < _CRASHES_S for at_s in self._crashes)
        if crashes > _CRASHES_MAX:
            pause_s = max(pause_s, self._crashes[-1] + min(2.0 ** (crashes - _CRASHES_MAX), _PAUSE_MAX_S) - now_s)
        return pause_s

    def _started(self) -> _Running:
        """Start the process and open the store. Raises what opening raises, or ``StoreUnavailable`` if the process ends."""
        control, other = socket.socketpair()
        # The engine takes the zone of the host for the times that a statement gives without one, and readers take them as UTC.
        zone_and_path = {"TZ": "UTC", "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        environment = {**os.environ, **zone_and_path}
        command = [sys.executable, *_COMMAND, str(other.fileno())]
        descriptors = (other.fileno(), *self._inherited)
        try:
            # Anything that prints writes to the log.
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, env=environment, pass_fds=descriptors)
        except BaseException:
            control.close()
            raise
        finally:
            other.close()
        running = _Running(process, control)
        with self._changed:
            self._starting = running
            if self._closing:
                process.kill()
        try:
            try:
                connection = running.connected()
                is_result, value = _answer(connection, (0, "open", self._opening))
            except (EOFError, OSError) as error:
                code = running.end()
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                raise StoreUnavailable(f"the process of the store ended at its start ({how})") from error
            _result(is_result, value)
        except BaseException:
            running.end()
            raise
        running.idle.append(connection)
        return running

    def _watch(self, running: _Running) -> None:
        """End the process if a statement of a reader goes beyond a limit. The caller holds ``_changed``."""
        late = [read for read in self._reads if time.monotonic() > read.until_s]
        memory, at_rest = anonymous_bytes(running.process.pid) or 0, running.at_rest
        at_rest.add(memory)
        # A process that has ended has none.
        running.is_grown = memory > at_rest.bytes + self._read_bytes_max // 2 if memory else running.is_grown
        # Statements that run at the same time have their memory each, and so have Legato's own.
        allowed = int(self._read_bytes_max * (0.5 + len(self._reads) + bool(self._own)))
        if memory > at_rest.bytes + allowed:
            for read in self._reads:
                what = f"ended, because the queries that ran took more than {allowed} bytes"
                read.reason = _beyond(_MEMORY, what, self._tenants(), self._is_alone())
            self._end(running, "memory")
        elif late:
            for read in late:
                what = f"ended, because the query took more than {self._read_seconds_max:g} s"
                # Legato's own statements hold up no reader's.
                read.reason = _beyond(_TIMEOUT, what, self._tenants(), len(self._reads) == 1)
            self._end(running, "time")

    def _tenants(self) -> set[str]:
        return {read.tenant for read in self._reads}

    def _is_alone(self) -> bool:
        """Whether one statement of a reader runs, and none of Legato: then it is the cause of what happens."""
        return len(self._reads) == 1 and not self._own


def _beyond(code: int, what: str, tenants: Collection[str], is_alone: bool) -> QueryEnded:
    message = f"Code: {code}. DB::Exception: {what}: choose a shorter range, or smaller arguments"
    return QueryEnded(message, code, tenants, is_alone=is_alone)


def _restarting(tenants: Collection[str], *, is_fault: bool = False) -> StoreRestarting:
    message = "the process of the store ended and is started again: retry"
    return StoreRestarting(message, tenants, is_fault=is_fault)


def _answer(connection: _Channel, request: _Request) -> tuple[bool, Any]:
    """Send a request, and return the answer: whether it is a result, else an error; and its value."""
    connection.send_bytes(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
    # Only the process of the store, which is this program, writes into the connection.
    is_result, value = pickle.loads(connection.recv_bytes())
    return is_result, value


def _result(is_result: bool, value: Any) -> Any:
    if is_result:
        return value
    kind, arguments = value
    raise kind(*arguments)
