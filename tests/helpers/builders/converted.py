"""The rows of a body in one batch, for tests that need no second one."""

from __future__ import annotations

from typing import Any

from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.bodies import convert

__all__ = ["convert_body"]


def convert_body(content: bytes, **given: Any) -> Batch:
    """Return all batches of ``bodies.convert`` as one."""
    return Batch.joined(convert(content, **given))
