"""Messages that an engine publishes over ZMQ: numbered, so that those that were lost are counted.

One idea: a thread of its own waits in `poll` and hands each message on at once, so the moment of receipt is the moment of the message, and
no prompt that a message may hold waits in a queue of ours. What cannot be taken is counted, and a publisher that vanishes is one that says
nothing. Three frames: topic, number (8 bytes, big-endian), payload. It decodes none.

A publisher of which nothing can be taken is one that fails, and says why.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import zmq

from legato_gpu_agent.collectors import Absent
from legato_gpu_agent.collectors.decode_errors import Unusable, none_of, reason_of

__all__ = ["Subscription"]

BYTES_MAX = 32 * 2**20
"""SGLang tells of each page of a prompt in the cache, which may be a token: some 130 bytes."""
_QUEUE_MESSAGES_MAX = 500
_POLL_MS = 100
# A publisher that says nothing for so long is told as absent; SGLang and Dynamo send a heartbeat every second while they idle.
_SILENT_S = 30.0
# After a message beyond the bound ZMQ gives a connection up for good, and says nothing of it: so a silent one is made anew.
_REOPEN_S = 10.0
# No gap is longer: a number further ahead is another publisher's.
_LOST_MAX = 2**32
_FRAMES = "topic, number (8 bytes) and payload"


class Subscription:
    """Subscribes to all topics of the publisher at ``endpoint``, which is to publish what is ``expected``.

    ``take`` is given when each message came (ns since the epoch) and its payload, in the thread that listens; a message for which it raises
    is a ``bad`` one, any other is ``taken``. ``lost``: messages whose numbers were left out.
    """

    def __init__(
        self,
        endpoint: str,
        take: Callable[[int, bytes], None],
        bytes_max: int = BYTES_MAX,
        clock_ns: Callable[[], int] = time.time_ns,
        expected: str = _FRAMES,
    ) -> None:
        self.lost = self.bad = self.taken = 0
        self._endpoint, self._take, self._bytes_max, self._clock_ns = endpoint, take, bytes_max, clock_ns
        self._expected, self._why = expected, ""
        # How many were bad and taken when a round last went well.
        self._well = (0, 0)
        self._number: int | None = None
        self._heard_s = time.monotonic()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def listen(self) -> None:
        """Listen from now on. Raises ``Absent`` where there is no such endpoint, and after a long silence.

        Raises ``Unusable`` where messages came since it last went well, and none of them could be taken; it listens on all the same.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, args=(self._open(),), name=f"legato {self._endpoint}", daemon=True)
            self._thread.start()
        if time.monotonic() - self._heard_s > _SILENT_S:
            raise Absent(f"nothing comes from {self._endpoint}: is it the engine's endpoint, and does the engine publish?")
        self._refuse_the_unusable()

    def close(self) -> None:
        """Listen no more."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _refuse_the_unusable(self) -> None:
        # In this order: a message that is taken meanwhile makes this round a good one.
        bad, taken = self.bad, self.taken
        bad_before, taken_before = self._well
        if bad > bad_before and taken == taken_before:
            # Of one that was understood before it is said once a bad message, as it may have nothing else to say for a while.
            if taken:
                self._well = bad, taken
            raise Unusable(f"{self._endpoint}: {none_of(bad - bad_before, 'messages', self._why, self._expected)}")
        self._well = bad, taken

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            with socket, contextlib.suppress(zmq.ZMQError):
                self._hear(socket)
            if self._closing.wait(_POLL_MS / 1000):
                return
            try:
                socket = self._open()
            except Absent:
                # The next round says so.
                return

    def _hear(self, socket: zmq.Socket[bytes]) -> None:
        """Until it is closed, or nothing comes any more."""
        heard_s = time.monotonic()
        while not self._closing.is_set() and time.monotonic() - heard_s < _REOPEN_S:
            if socket.poll(_POLL_MS):
                self._came(socket.recv_multipart(zmq.NOBLOCK), self._clock_ns())
                heard_s = time.monotonic()

    def _came(self, frames: list[bytes], came_ns: int) -> None:
        self._heard_s = time.monotonic()
        try:
            _check(frames, self._bytes_max)
            self._count(int.from_bytes(frames[1], "big", signed=True))
            self._take(came_ns, frames[2])
        except Exception as error:
            # Whatever a message does to its decoder, it must not end the thread. The reason first: who sees the count sees it, too.
            self._why = reason_of(error)
            self.bad += 1
        else:
            self.taken += 1

    def _count(self, number: int) -> None:
        """What lies between this number and the one before was lost; a number that went back is a publisher that began anew."""
        missing = number - self._number - 1 if self._number is not None else 0
        if 0 < missing <= _LOST_MAX:
            self.lost += missing
        self._number = number

    def _open(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.RCVHWM, _QUEUE_MESSAGES_MAX)
            socket.setsockopt(zmq.MAXMSGSIZE, self._bytes_max)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise Absent(f"{self._endpoint} is no endpoint to connect to: {error}") from None
        return socket


def _check(frames: list[bytes], bytes_max: int) -> None:
    """Raises ``Unusable`` for frames that are none of ours."""
    if len(frames) != 3 or len(frames[1]) != 8:
        raise Unusable(f"frames ({len(frames):,}) that are not {_FRAMES}")
    if len(frames[2]) > bytes_max:
        raise Unusable(f"a message of {len(frames[2]):,} bytes, where {bytes_max:,} are the most")
