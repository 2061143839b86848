"""The offsets of engines' clocks that the search for due streams uses: computed from new records of finished requests, and kept in memory.

They need not be exact: they widen the stretch of time in which streams are searched. `clock_offsets` has those that verdicts use.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from legato_ingest.attribution.load.engine_ids import is_one_of
from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, unquoted

__all__ = ["CLOCKS_APART_NS", "STREAM_NS_MAX", "LearnedOffsets", "stretch_of_any"]

# An agent sends what it recorded after this time at the latest, so a longer delay is an offset between two clocks.
_FLUSH_NS_MAX = 30_000_000_000
# The streams of an engine are searched far from its records at most so often.
_SEARCH_EVERY_S = 60.0
CLOCKS_APART_NS = 7_200_000_000_000
"""The clocks of the client, the server and the engine may differ by this much, and they still find each other."""
STREAM_NS_MAX = 600_000_000_000
"""A stream that ran at some time usually started at most this long before it."""
# Of each tenant so many engines are kept, and of all tenants together, those that were used last: 12 MB. A sender can name any number of
# them, and names of containers do not recur.
_ENGINES_MAX, _ENGINES_OF_ALL_MAX = 4_096, 65_536
_OFFSETS = """
WITH
    finished AS
    (
        SELECT tenant, engine_id, response_id, toUnixTimestamp64Nano(recorded_at) AS recorded_ns
        FROM engine_requests
        WHERE {new} AND response_id != ''
        LIMIT 16 BY tenant, engine_id
    )
SELECT
    tenant, engine_id, countIf(ended_ns != 0) AS known, toInt64(quantileExactIf(recorded_ns - ended_ns, ended_ns != 0)) AS offset_ns
FROM finished
LEFT JOIN
(
    SELECT tenant, response_id, toUnixTimestamp64Nano(start_time) + toInt64(duration_ns) AS ended_ns
    FROM stream_revs
    WHERE {around} AND ended AND vantage IN ('client', 'server') AND response_id IN (SELECT response_id FROM finished)
) AS ends USING (tenant, response_id)
GROUP BY tenant, engine_id"""
# The least and the greatest offset; 0 without any.
_RANGE = f"SELECT min(offset_ns), max(offset_ns) FROM ({_OFFSETS}) WHERE known > 0"


class LearnedOffsets:
    """The offset of each engine's clock, in ns, as far as it is known: its records minus the clock of its streams."""

    def __init__(self) -> None:
        # By tenant, each in the order of its last use.
        self._offset_ns: OrderedDict[str, OrderedDict[str, int]] = OrderedDict()
        self._engines = 0
        # The engines of which the streams were searched far from the records within the last minute, and when (monotonic).
        self._searched_s: dict[EngineKey, float] = {}

    def __len__(self) -> int:
        return self._engines

    def learn(self, store: Store, new: str, low_ns: int, high_ns: int) -> None:
        """Compute the offsets of the engines with new records of finished requests between these times, from the ends of their streams.

        Streams that started at most ``STREAM_NS_MAX`` before the records are searched first. Those of the hours around them are searched
        only for engines without any of the first, and at most once a minute for each engine.
        """
        unknown = self._learn(store, new, between_ns("start_time", low_ns - STREAM_NS_MAX, high_ns + _FLUSH_NS_MAX))
        now_s = time.monotonic()
        self._searched_s = {key: at_s for key, at_s in self._searched_s.items() if now_s - at_s < _SEARCH_EVERY_S}
        far = [key for key in unknown if key not in self._searched_s]
        if far:
            self._searched_s |= dict.fromkeys(far, now_s)
            self._learn(store, f"{new} AND {is_one_of(far)}", _hours_around(low_ns, high_ns))

    def _learn(self, store: Store, new: str, around: str) -> list[EngineKey]:
        """Compute the offsets from streams that started at some times. Return the engines without any of them."""
        unknown = []
        sql = f"{_OFFSETS.format(new=new, around=around)} LIMIT {_ENGINES_MAX} BY tenant"
        for tenant, engine_id, known, offset_ns in store.select(sql):
            key = str(unquoted(tenant)), str(unquoted(engine_id))
            if int(known):
                self._keep(key, int(offset_ns))
            else:
                unknown.append(key)
        return unknown

    def _keep(self, key: EngineKey, offset_ns: int) -> None:
        own = self._offset_ns.setdefault(key[0], OrderedDict())
        self._offset_ns.move_to_end(key[0])
        self._engines += key[1] not in own
        own[key[1]] = offset_ns
        own.move_to_end(key[1])
        if len(own) > _ENGINES_MAX:
            self._forget_one(key[0])
        if self._engines > _ENGINES_OF_ALL_MAX:
            self._forget_one(next(iter(self._offset_ns)))

    def _forget_one(self, tenant: str) -> None:
        """Forget the engine of a tenant that was not used for the longest time."""
        own = self._offset_ns[tenant]
        own.popitem(last=False)
        self._engines -= 1
        if not own:
            del self._offset_ns[tenant]

    def stretch(self, key: EngineKey, low_ns: int, high_ns: int) -> tuple[int, int]:
        """Return the stretch of time, by the clock of the streams, that steps from ``low_ns`` to ``high_ns`` are about.

        A small offset may be the time between two flushes, so the stretch then includes the one without the offset.
        """
        own = self._offset_ns.get(key[0], OrderedDict())
        offset = own.get(key[1], 0)
        if key[1] in own:
            own.move_to_end(key[1])
            self._offset_ns.move_to_end(key[0])
        if abs(offset) > _FLUSH_NS_MAX:
            return low_ns - offset - _FLUSH_NS_MAX, high_ns - offset + _FLUSH_NS_MAX
        return low_ns - max(offset, 0), high_ns - min(offset, 0)


def stretch_of_any(store: Store, new: str, low_ns: int, high_ns: int) -> tuple[int, int]:
    """Return the stretch of time that steps of one tenant from ``low_ns`` to ``high_ns`` are about, whichever engine they are of.

    ``new`` selects the tenant's new records. No engine is kept in memory.
    """
    ((low, high),) = store.select(_RANGE.format(new=new, around=_hours_around(low_ns, high_ns)))
    least, greatest = min(0, int(low)), max(0, int(high))
    return low_ns - greatest - _FLUSH_NS_MAX, high_ns - least + _FLUSH_NS_MAX


def _hours_around(low_ns: int, high_ns: int) -> str:
    return between_ns("start_time", low_ns - CLOCKS_APART_NS, high_ns + CLOCKS_APART_NS)
