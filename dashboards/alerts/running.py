"""The SQL of the rule on streams that are stalled now, while they run: one row per service and vantage, with ``firing`` and figures.

The burn rates count streams that have ended. If all streams of a service freeze, none ends, so this rule reads what the SDK reports about
running streams: those without content for 8 s or more, and the number in flight. Streams without any content so far do not count, because
some models think for a long time before their first output.
"""

from __future__ import annotations

from legato_ingest.definitions import VANTAGES

__all__ = ["STALLED"]

# A page needs this many streams, and this share of those in flight. Several streams are silent at once only if something is wrong.
_STREAMS_MIN, _SHARE_MIN = 3, 0.1
_SILENCE_US_MIN = 8_000_000
_PLACE = f"indexOf({list(VANTAGES)}, vantage::String)"
STALLED = f"""WITH
    flying AS
    (
        SELECT tenant, service_name AS service, vantage, sum(streams) AS running
        FROM streams_in_flight
        GROUP BY tenant, service, vantage
    ),
    silent AS
    (
        SELECT tenant, service_name AS service, vantage, trace_id, silence_us, {_PLACE} AS place
        FROM stalled_streams
        WHERE reported_us >= {_SILENCE_US_MIN} AND gap_start_us > 0
    ),
    counted AS
    (
        SELECT
            tenant, service, vantage, trace_id, silence_us, place,
            count() OVER (PARTITION BY tenant, service, vantage) AS standing, greatest(running, standing) AS flown,
            standing >= {_STREAMS_MIN} AND standing >= {_SHARE_MIN} * flown AS is_enough
        FROM silent
        LEFT JOIN flying USING (tenant, service, vantage)
    )
SELECT
    tenant, service, vantage, toUInt8(any(is_enough) AND covered < 0.5 * stalled) AS firing,
    any(standing) AS stalled, any(flown) AS in_flight, round(max(silence_us) / 1e6) AS longest_s, countIf(place < nearest) AS covered
FROM
(
    -- The incident pages once, at the vantage nearest to the end user that has enough of these streams: a frozen backend behind a larger
    -- client pages itself.
    SELECT *, max(if(is_enough, place, 0)) OVER (PARTITION BY tenant, trace_id) AS nearest FROM counted
)
GROUP BY tenant, service, vantage
ORDER BY firing DESC, stalled DESC, service, vantage
LIMIT 1000
"""
