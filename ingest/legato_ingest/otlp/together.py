"""Conversion of the bodies of several requests of spans at once, each to a separate batch of rows.

A process that sends its spans once a second sends small requests, and the tables of one small request cost nearly as much as those of a
hundred. Bodies that need care are not converted here: `split` converts each of them alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.budget import Budget
from legato_ingest.otlp.convert import convert_requests
from legato_ingest.otlp.protobuf import messages_max
from legato_ingest.otlp.signals import SPANS

__all__ = ["convert_bodies"]

# Limits of the bodies that are parsed at once.
_BYTES_MAX, _MESSAGES_MAX = 2**19, 98_304
# Bodies that are left after this time are converted alone, in several threads.
_PATIENCE_S = 0.25


def convert_bodies(contents: Sequence[bytes], *, tenant: str, now_ns: int, limits: Limits) -> list[Batch | None]:
    """Return the batch of each decompressed body; ``None`` for each that has to be converted alone: it is large, or one near it is bad."""
    began_s, out = time.monotonic(), list[Batch | None]()
    for group in _groups(contents):
        is_late = time.monotonic() - began_s > _PATIENCE_S
        budgets = [Budget.of(limits, len(content), tenant, now_ns) for content in group]
        out += _together(group, tenant, now_ns, limits, budgets) if len(group) > 1 and not is_late else [None] * len(group)
    return out


def _groups(contents: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield the bodies in groups within the limits; a larger body is a group."""
    group, size, messages = list[bytes](), 0, 0
    for content in contents:
        more = messages_max(content)
        if group and (size + len(content) > _BYTES_MAX or messages + more > _MESSAGES_MAX):
            yield group
            group, size, messages = [], 0, 0
        group.append(content)
        size, messages = size + len(content), messages + more
    yield group


def _together(contents: Sequence[bytes], tenant: str, now_ns: int, limits: Limits, budgets: Sequence[Budget]) -> Sequence[Batch | None]:
    try:
        requests = [SPANS.request.FromString(content) for content in contents]
        return convert_requests(requests, tenant=tenant, now_ns=now_ns, limits=limits, budgets=budgets)
    except (MemoryError, OSError):
        raise
    except Exception:
        # Of one request, or a fault in Legato: the conversion of each alone finds it, and counts it.
        return [None] * len(contents)
