"""The conversion of one body as it was received: decompression, then the rows in batches. It runs in any thread or process.

The module decides nothing about when and where a body is converted (``conversion``), and it counts and logs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from legato_ingest.errors import TooLarge
from legato_ingest.otlp import bodies, http
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.settings import Settings
from legato_ingest.write.body import Body

__all__ = ["BodyConverter", "OnFault", "Part", "Rows"]

OnFault = Callable[[Exception], None]
"""Receives each exception of Legato's own code on one item of a body; the item is rejected."""
Rows = Callable[[Body, OnFault], Iterator[Batch]]
"""Yields the rows of a body, like ``BodyConverter.rows``."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one step of a conversion gave: a batch, or ``None`` at the end of the body; the faults of items; the error if it failed."""

    batch: Batch | None
    faults: tuple[Exception, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class BodyConverter:
    """Converts bodies of at most ``bytes_max`` bytes before and after decompression."""

    limits: Limits
    bytes_max: int

    @classmethod
    def of(cls, settings: Settings) -> BodyConverter:
        """Return the converter with the limits of the settings."""
        limits = Limits(chunks_per_request_max=settings.chunks_per_request_max, retention_days=settings.retention_days)
        return cls(limits, settings.body_bytes_max)

    def content(self, body: Body, bytes_max: int | None = None) -> bytes | None:
        """Return the decompressed content; ``None`` if it has more than ``bytes_max``. Raises ``BadRequest``, ``TooLarge``."""
        try:
            return http.decompress(body.encoding, body.content, min(bytes_max or self.bytes_max, self.bytes_max))
        except TooLarge:
            if bytes_max is None or bytes_max >= self.bytes_max:
                raise
            return None

    def rows(self, body: Body, on_fault: OnFault) -> Iterator[Batch]:
        """Yield the rows of a body, at least one batch. Raises ``BadRequest`` and ``TooLarge`` before the first batch."""
        content = self.content(body)
        assert content is not None, "without a limit it is returned or refused"
        yield from self.rows_of(body, content, on_fault)

    def rows_of(self, body: Body, content: bytes, on_fault: OnFault) -> Iterator[Batch]:
        """Yield the rows of a body with this decompressed content."""
        return bodies.convert(
            content,
            tenant=body.tenant,
            now_ns=body.received_ns,
            limits=self.limits,
            on_fault=on_fault,
            signal=body.signal,
            is_json=http.check_type(body.content_type) == http.JSON,
        )
