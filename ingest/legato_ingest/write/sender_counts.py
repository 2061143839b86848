"""Numbers of spans of foreign emitters, for the table `emitter_spans`: who sends what, and what becomes of it.

They are added up in memory and written every 10 s at most, because a row for each request would cost more than the spans. They are not
exact: a retried request counts again, and a killed process loses the last of them. Used by the committer's thread only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.columns import EMITTER_SPANS
from legato_ingest.emitters import OWN_PREFIX
from legato_ingest.write.recordings import Recording

__all__ = ["SenderCounts"]

STORED, SAME_RESPONSE, IGNORED = "stored", "same_response", "ignored"
_EVERY_S = 10.0
# Different keys in memory; more of them are counted under their result alone. An application could send a new scope with every span.
_KEYS_MAX = 10_000
# Tenant, service name, scope, scope version, emitter, result, reason.
_Key = tuple[str, str, str, str, str, str, str]


class SenderCounts:
    """Numbers of spans that were not written yet."""

    def __init__(self) -> None:
        self._counts: Counter[_Key] = Counter()
        self._written_s = -_EVERY_S

    def add_ignored(self, senders: Counter[tuple[str, ...]]) -> None:
        """Count ignored spans, by tenant and ``otlp.spans.Sender``."""
        for (tenant, service, scope, version, emitter, reason), number in senders.items():
            self._add((tenant, service, scope, version, emitter, IGNORED, reason), number)

    def add_stored(self, rows: pa.Table) -> None:
        """Count the rows of ``stream_revs`` that are of foreign emitters."""
        if not rows.num_rows:
            return
        foreign = rows.filter(pc.invert(pc.starts_with(rows["emitter"], OWN_PREFIX)))
        if foreign.num_rows:
            counted = foreign.group_by(["tenant", "service_name", "emitter"]).aggregate([([], "count_all")])
            for row in counted.to_pylist():
                self._add((row["tenant"], row["service_name"], "", "", row["emitter"], STORED, ""), row["count_all"])

    def add_same(self, lost: Iterable[tuple[Recording, Recording]]) -> None:
        """Count rows that step back for another row of the same response."""
        for loser, winner in lost:
            self._add((loser.tenant, loser.service_name, "", "", loser.emitter, SAME_RESPONSE, winner.emitter), 1)

    def _add(self, key: _Key, number: int) -> None:
        if key not in self._counts and len(self._counts) >= _KEYS_MAX:
            key = (key[0], "", "(other)", "", "", key[5], "")
        self._counts[key] += number

    def due_in_s(self) -> float | None:
        """Return in how many seconds the numbers should be written; None without any."""
        return max(0.0, self._written_s + _EVERY_S - time.monotonic()) if self._counts else None

    def postpone(self) -> None:
        """Let the numbers be due again after the usual time."""
        self._written_s = time.monotonic()

    def taken(self) -> pa.Table:
        """Return the rows of ``emitter_spans`` for all numbers, and begin at zero."""
        counts, self._counts = self._counts, Counter()
        self._written_s = time.monotonic()
        names = ("tenant", "service_name", "scope", "scope_version", "emitter", "result", "reason")
        columns = {name: pa.array([key[place] for key in counts], EMITTER_SPANS[name].type) for place, name in enumerate(names)}
        columns["spans"] = pa.array(list(counts.values()), EMITTER_SPANS["spans"].type)
        columns["received_at"] = pa.nulls(len(counts), EMITTER_SPANS["received_at"].type)
        return EMITTER_SPANS.rows(columns)
