"""Bodies of responses as the SDK reads them: what its scanner finds in these reads, and how the stream ends."""

from __future__ import annotations

from typing import Any

from legato._body import Body
from legato._recorder import CONTENT, Origin, StreamRecorder
from legato._spans import start_span

__all__ = ["content", "outcome", "read"]


def read(reads: list[bytes], content_type: str, encoding: str = "", **more: Any) -> Body:
    """Return a finished body that was given these reads."""
    body = Body(content_type, encoding, **more)
    for time_ns, data in enumerate(reads):
        body.feed(time_ns, data)
    body.finish(len(reads))
    return body


def content(body: Body) -> list[int]:
    """Return the sizes of the chunks with content."""
    return [size for size, kind in zip(body.scan.sizes, body.scan.kinds, strict=True) if kind in CONTENT]


def outcome(reads: list[bytes], content_type: str, **more: Any) -> tuple[str, str]:
    """Return outcome and error type of a stream with a body that ended normally after these reads."""
    origin = Origin()
    recorder = StreamRecorder(origin, start_span(origin, 0), 0, lambda _: None, body=Body(content_type, **more))
    for time_ns, data in enumerate(reads):
        recorder.read((time_ns, data))
    recorder.end()
    recorder.digest()
    end = recorder.final_end()
    assert end is not None
    return end.outcome, end.error_type
