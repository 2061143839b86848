"""Receives the messages that an engine publishes over ZMQ, and counts the lost ones by their numbers.

A separate thread waits in `poll` and passes each message on at once, so the time of receipt is the time of the message, and prompts in a
message do not wait in a queue. A message has three frames: topic, number (8 bytes, big-endian), payload. Undecodable messages are counted;
a publisher that vanishes is treated as silent, and one with only undecodable messages as failing, with the reason. The module decodes no
payload.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import zmq

from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.decode_errors import DecodeError, nothing_decoded, safe_reason

__all__ = ["ZmqSubscriber"]

BYTES_MAX = 32 * 2**20
"""Maximum length of a message. SGLang sends about 130 bytes for each block of a prompt, which may hold one token."""
_QUEUE_MESSAGES_MAX = 500
_POLL_MS = 100
# After this silence a publisher counts as not available; SGLang and Dynamo send a heartbeat every second while they are idle.
_SILENT_S = 30.0
# After a message beyond the size limit ZMQ drops the connection without an error, so a silent connection is opened again.
_REOPEN_S = 10.0
# Maximum number of messages counted as lost at once: a larger jump in the numbers comes from another publisher.
_LOST_MAX = 2**32
_FRAMES = "topic, number (8 bytes) and payload"


class ZmqSubscriber:
    """Subscribes to all topics of the publisher at ``endpoint``; error texts name what is ``expected`` there.

    ``take`` is called with the arrival time (ns since the epoch) and the payload of each message, in the receiving thread. A message for
    which it raises counts as ``bad``, any other as ``taken``. ``lost`` counts missing numbers. ``has_heartbeat``: an idle publisher sends,
    too, so that one that was heard and is silent is gone.
    """

    def __init__(
        self,
        endpoint: str,
        take: Callable[[int, bytes], None],
        bytes_max: int = BYTES_MAX,
        clock_ns: Callable[[], int] = time.time_ns,
        expected: str = _FRAMES,
        has_heartbeat: bool = True,
    ) -> None:
        self.lost = self.bad = self.taken = 0
        self._endpoint, self._take, self._bytes_max, self._clock_ns = endpoint, take, bytes_max, clock_ns
        self._expected, self._why, self._has_heartbeat = expected, "", has_heartbeat
        # Counts of bad and taken messages at the last successful round.
        self._last_success = (0, 0)
        self._number: int | None = None
        self._received_s = time.monotonic()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def listen(self) -> None:
        """Start receiving if it has not started. Raises ``NotAvailable`` for an invalid endpoint and after a long silence, of a
        publisher without a heartbeat only before its first message.

        Raises ``DecodeError`` if messages arrived since the last successful call and all were bad; receiving continues.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, args=(self._open(),), name=f"legato {self._endpoint}", daemon=True)
            self._thread.start()
        is_idle = not self._has_heartbeat and self.bad + self.taken > 0
        if not is_idle and time.monotonic() - self._received_s > _SILENT_S:
            raise NotAvailable(f"no message from {self._endpoint}: is it the engine's endpoint, and does the engine publish?")
        self._raise_if_all_bad()

    def close(self) -> None:
        """Stop receiving."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _raise_if_all_bad(self) -> None:
        # In this order, a message that is taken between the two reads makes this round successful.
        bad, taken = self.bad, self.taken
        bad_before, taken_before = self._last_success
        if bad > bad_before and taken == taken_before:
            # A publisher with earlier good messages may be quiet for a while, so its bad messages are reported once.
            if taken:
                self._last_success = bad, taken
            raise DecodeError(f"{self._endpoint}: {nothing_decoded(bad - bad_before, 'messages', self._why, self._expected)}")
        self._last_success = bad, taken

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            with socket, contextlib.suppress(zmq.ZMQError):
                self._receive(socket)
            if self._closing.wait(_POLL_MS / 1000):
                return
            try:
                socket = self._open()
            except NotAvailable:
                # The next round reports it.
                return

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        """Receive until closed, or until the connection has been silent for 10 s."""
        received_s = time.monotonic()
        while not self._closing.is_set() and time.monotonic() - received_s < _REOPEN_S:
            if socket.poll(_POLL_MS):
                self._process(socket.recv_multipart(zmq.NOBLOCK), self._clock_ns())
                received_s = time.monotonic()

    def _process(self, frames: list[bytes], arrived_ns: int) -> None:
        self._received_s = time.monotonic()
        try:
            _check(frames, self._bytes_max)
            self._count_lost(int.from_bytes(frames[1], "big", signed=True))
            self._take(arrived_ns, frames[2])
        except Exception as error:
            # No message may end the thread. The reason is set before the count, so that a reader of the count finds it.
            self._why = safe_reason(error)
            self.bad += 1
        else:
            self.taken += 1

    def _count_lost(self, number: int) -> None:
        """Count the numbers between the last message and this one as lost; a number that went back is a restarted publisher."""
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
            raise NotAvailable(f"cannot connect to {self._endpoint}: {error}") from None
        return socket


def _check(frames: list[bytes], bytes_max: int) -> None:
    """Raise ``DecodeError`` for frames of another format."""
    if len(frames) != 3 or len(frames[1]) != 8:
        raise DecodeError(f"frames ({len(frames):,}) other than {_FRAMES}")
    if len(frames[2]) > bytes_max:
        raise DecodeError(f"a message of {len(frames[2]):,} bytes: expected at most {bytes_max:,}")
