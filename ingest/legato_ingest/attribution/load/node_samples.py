"""Whether a stretch of time has samples at all: most stores have no GPUs or no host sampled, and need no query for each hundred engines."""

from __future__ import annotations

from collections.abc import Sequence

from legato_ingest.attribution.load.by_engine import Windows, span_of
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted_all

__all__ = ["has_samples"]

_ANY = """
SELECT 1 FROM node_samples
WHERE metric IN ({metrics}) AND {inside}
LIMIT 1"""


def has_samples(store: Store, metrics: Sequence[str], windows: Windows) -> bool:
    """Return whether the store has a sample of one of these metrics between the first and the last time of these windows."""
    if not windows:
        return False
    inside = between_ns("recorded_at", *span_of(windows))
    return bool(store.select(_ANY.format(metrics=quoted_all(metrics), inside=inside)))
