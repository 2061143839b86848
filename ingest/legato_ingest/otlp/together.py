"""Conversion of the bodies of several requests of spans at once, each to a separate batch of rows.

A process that sends its spans once a second sends small requests, and the tables of one small request cost nearly as much as those of a
hundred. Bodies that need care are not converted here: `split` converts each of them alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_requests
from legato_ingest.otlp.signals import SPANS
from legato_ingest.otlp.split import is_parsed_whole

__all__ = ["convert_bodies"]


def convert_bodies(contents: Sequence[bytes], *, tenant: str, now_ns: int, limits: Limits) -> list[Batch] | None:
    """Return the batch of each decompressed body. ``None``: each has to be converted alone, because one is bad, or all are too large."""
    if not all(is_parsed_whole(content, SPANS) for content in contents):
        return None
    try:
        requests = [SPANS.request.FromString(content) for content in contents]
        return convert_requests(requests, tenant=tenant, now_ns=now_ns, limits=limits)
    except (MemoryError, OSError):
        raise
    except Exception:
        # Of one request, or a fault in Legato: the conversion of each alone finds it, and counts it.
        return None
