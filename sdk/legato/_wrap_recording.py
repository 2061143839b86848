"""The recording of what `legato.wrap` passes on: its chunks, holds and end, and whether the stream is one that an instrumentation records.

That may show only when the source is opened, or with its first item; then the recording is given up. This module opens nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from legato._clock import now_ns
from legato._context import Opening, opening
from legato._errors import guard
from legato._nested import is_of_library, is_recorded_already
from legato._recorder import StreamRecorder

__all__ = ["ItemRecording", "Measure", "Start"]

T = TypeVar("T")
Measure = Callable[[Any], int]
Start = Callable[[], StreamRecorder]


class ItemRecording:
    """The recording that both wrappers share: chunks, holds and the end. ``is_lazy``: opening the source, or its first item, may begin a
    stream that an instrumentation records.

    ``start`` makes the recorder: at once, or if ``is_deferred`` when the source is opened, because the request is hardly sent before.
    """

    __slots__ = ("_handed_over_ns", "_is_of_library", "_measure", "_opening", "_start", "is_lazy", "recorder")

    def __init__(self, start: Start | None, measure: Measure | None, *, is_lazy: bool, is_deferred: bool, is_of_library: bool) -> None:
        self.recorder: StreamRecorder | None = None
        self.is_lazy = is_lazy
        self._is_of_library = is_of_library
        self._measure = measure
        self._handed_over_ns = 0
        self._opening: Opening | None = None
        self._start = start
        if not is_deferred:
            self._begin()

    def _begin(self) -> None:
        start, self._start = self._start, None
        if start is None:
            return
        with guard("wrap()"):
            self.recorder = start()
            if self.is_lazy:
                # Another instrumentation may take the stream, so it is not reported before its first item.
                self.recorder.asked = False

    def requested(self) -> None:
        """The application requests the next item, which ends the hold of the previous one."""
        if self._start is not None:
            self._begin()
        if self.recorder is None:
            return
        self.recorder.left_ns = 0
        if self._handed_over_ns:
            self.recorder.held(now_ns() - self._handed_over_ns)
            self._handed_over_ns = 0

    def received(self, item: T) -> T:
        """The source yielded an item. Record it and return it for the application."""
        if self.recorder is None:
            return item
        self.recorder.asked = True
        if self._measure is None:
            self.recorder.read((now_ns(), _fixed(item)))
        else:
            size = 0
            with guard("measure of wrap()"):
                size = self._measure(item)
            self.recorder.record(size)
        self._handed_over_ns = now_ns()
        return item

    @contextmanager
    def first(self) -> Iterator[None]:
        """Run the opening of the source, or its first item. If an instrumentation records the stream, that is left to it."""
        if not self.is_lazy:
            yield
            return
        self.is_lazy = False
        with opening() as found:
            self._opening = found
            try:
                yield
            except BaseException:
                if found.begun and (self._is_of_library or found.begun[-1].failed):
                    self._supersede()
                raise
            finally:
                self._opening = None
            if self._is_of_library and found.begun:
                self._supersede()

    def look(self, opened: Any) -> None:
        """Look at what was opened: it may be the recorded stream, or a library's generator that sends its request with the first item.

        Streams that the opening began besides, such as the check of a prompt, are others.
        """
        found = self._opening
        if found is None:
            # A server's stream, which is another than those that its application requests.
            return
        with guard("wrap()"):
            self.is_lazy = self._is_of_library = is_of_library(opened)
            running = any(not each.ended for each in found.begun)
            found.begun.clear()
            found.is_over = not self._is_of_library
            if (self._is_of_library and running) or is_recorded_already(opened, is_opened=True):
                self._supersede()
            elif self.recorder is not None:
                self.recorder.asked = not self._is_of_library

    def _supersede(self) -> None:
        self.is_lazy = False
        if self.recorder is not None:
            self.recorder.discard()
            self.recorder = None

    def raised(self, error: BaseException, exhausted: type[BaseException]) -> None:
        """The source raised: ``exhausted`` is its normal end, anything else an error."""
        if isinstance(error, exhausted):
            self.finish()
        else:
            self.finish(error=error)

    def finish(self, outcome: str = "complete", error: BaseException | None = None) -> None:
        """End the stream, and with it the hold of the last item. One that has not sent its request does not begin."""
        self._start = None
        self.requested()
        if self.recorder is not None:
            self.recorder.end(outcome, error)


def _fixed(item: Any) -> Any:
    """Return an item; of a bytearray, which the application may change, its bytes. No code of the item's class runs."""
    return b"".join((item,)) if issubclass(type(item), bytearray) else item
