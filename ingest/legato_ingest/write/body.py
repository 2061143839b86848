"""The body of a request as it was received, its form in the write-ahead log, and its entry in that log.

The log holds what the sender sent, so after a crash it is converted again as if the sender had repeated the request. Nothing is converted
here.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from legato_ingest.otlp.signals import SIGNALS, Signal

__all__ = ["Body", "Entry"]

_BY_PATH = {signal.path: signal for signal in SIGNALS}


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it was received, with the encoding of its content and the tenant of its sender.

    ``received_ns``: the receiver's clock at its arrival, which decides on retention and late days. When the log is read again after a
    crash, the same rows must come of it.
    """

    signal: Signal
    content: bytes
    content_type: str
    encoding: str
    tenant: str
    received_ns: int = field(default_factory=time.time_ns)

    def logged(self) -> tuple[bytes, bytes]:
        """Return the body's form in the log in two pieces: one line of JSON, then the content."""
        head = [self.signal.path, self.content_type, self.encoding, self.tenant, self.received_ns]
        return json.dumps(head).encode() + b"\n", self.content

    @classmethod
    def from_log(cls, logged: bytes) -> Body:
        """Return the body of its form in the log. Raises ``ValueError``."""
        head, _, content = logged.partition(b"\n")
        try:
            # A log of an older version has no time.
            path, content_type, encoding, tenant, *received_ns = json.loads(head)
            return cls(_BY_PATH[path], content, content_type, encoding, tenant, *received_ns)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a request of the write-ahead log: {error!r}") from None


@dataclass(slots=True, eq=False)
class Entry:
    """The body of a request, of which the rows are stored in one or several batches, and its ``segment`` once it is in the log.

    ``open``: batches that are neither stored nor refused, and one more until the last is queued. The body may leave the log when none is.
    ``is_set_aside``: it has left its segment, because a batch cannot be inserted. Not thread-safe.
    """

    body: Body
    segment: int | None = None
    open: int = 1
    is_set_aside: bool = False

    def count_down(self) -> bool:
        """Take note that a batch has left, or that the last one is queued. Return whether the body may leave its segment now."""
        self.open -= 1
        return not self.open and self.segment is not None and not self.is_set_aside
