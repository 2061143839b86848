"""Conversion of the bodies of several requests of spans at once, each to a separate batch of rows.

A process that sends its spans once a second sends small requests, and the tables of one small request cost nearly as much as those of a
hundred. Bodies that need care are not converted here: `split` converts each of them alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_requests
from legato_ingest.otlp.signals import SPANS

__all__ = ["convert_bodies"]

# Limits of the bodies that are parsed at once: those of one body that `split` parses whole. Every span and attribute has such a byte.
_BYTES_MAX, _TAGS_MAX = 2 * 2**20, 65_536
# Bodies that are left after this time are converted alone, in several threads.
_PATIENCE_S = 0.25


def convert_bodies(contents: Sequence[bytes], *, tenant: str, now_ns: int, limits: Limits) -> list[Batch | None]:
    """Return the batch of each decompressed body; ``None`` for each that has to be converted alone: it is large, or one near it is bad."""
    began_s, out = time.monotonic(), list[Batch | None]()
    for group in _groups(contents):
        is_late = time.monotonic() - began_s > _PATIENCE_S
        out += _together(group, tenant, now_ns, limits) if len(group) > 1 and not is_late else [None] * len(group)
    return out


def _groups(contents: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield the bodies in groups within the limits; a larger body is a group."""
    group, size, tags = list[bytes](), 0, 0
    for content in contents:
        more = sum(content.count(tag) for tag in SPANS.tags)
        if group and (size + len(content) > _BYTES_MAX or tags + more > _TAGS_MAX):
            yield group
            group, size, tags = [], 0, 0
        group.append(content)
        size, tags = size + len(content), tags + more
    yield group


def _together(contents: Sequence[bytes], tenant: str, now_ns: int, limits: Limits) -> Sequence[Batch | None]:
    try:
        requests = [SPANS.request.FromString(content) for content in contents]
        return convert_requests(requests, tenant=tenant, now_ns=now_ns, limits=limits)
    except (MemoryError, OSError):
        raise
    except Exception:
        # Of one request, or a fault in Legato: the conversion of each alone finds it, and counts it.
        return [None] * len(contents)
