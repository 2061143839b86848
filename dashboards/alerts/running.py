"""The SQL of the rule on streams that are stalled now, while they run: one row per service and vantage, with ``firing`` and figures.

The burn rates count streams that have ended. If all streams of a service freeze, none ends, so this rule reads what
the SDK reports about running streams: those without content for 8 s or more, and the number in flight. Streams without any content so far
do not count, because some models think for a long time before their first output.
"""

from __future__ import annotations

from legato_ingest.definitions import VANTAGES

__all__ = ["STALLED"]

# A page needs this many streams, and this share of those in flight. Several streams are silent at once only if something is wrong.
_STREAMS_MIN, _SHARE_MIN = 3, 0.1
_SILENCE_US_MIN = 8_000_000
_PLACE = f"indexOf({list(VANTAGES)}, vantage::String)"
STALLED = f"""WITH
    silent AS
    (
        SELECT tenant, service_name AS service, vantage, trace_id, silence_us, {_PLACE} AS place
        FROM stalled_streams
        WHERE reported_us >= {_SILENCE_US_MIN} AND gap_start_us > 0
    ),
    flying AS
    (
        SELECT tenant, service_name AS service, vantage, sum(streams) AS running
        FROM streams_in_flight
        GROUP BY tenant, service, vantage
    ),
    standing AS
    (
        SELECT
            tenant, service, vantage, stalled, greatest(running, stalled) AS in_flight, longest_us,
            stalled >= {_STREAMS_MIN} AND stalled >= {_SHARE_MIN} * in_flight AS is_enough
        FROM
        (
            SELECT tenant, service, vantage, count() AS stalled, max(silence_us) AS longest_us FROM silent GROUP BY tenant, service, vantage
        ) AS counted
        LEFT JOIN flying USING (tenant, service, vantage)
    ),
    -- The incident pages once, at the vantage nearest to the end user that has enough of these streams: a frozen backend behind a larger
    -- client pages itself.
    nearer AS
    (
        SELECT tenant, service, vantage, countIf(place < nearest) AS covered
        FROM
        (
            SELECT tenant, service, vantage, place, max(if(is_enough, place, 0)) OVER (PARTITION BY tenant, trace_id) AS nearest
            FROM silent
            INNER JOIN standing USING (tenant, service, vantage)
        )
        GROUP BY tenant, service, vantage
    )
SELECT
    tenant, service, vantage, toUInt8(is_enough AND covered < 0.5 * stalled) AS firing,
    stalled, in_flight, round(longest_us / 1e6) AS longest_s, covered
FROM standing
INNER JOIN nearer USING (tenant, service, vantage)
ORDER BY firing DESC, stalled DESC, service, vantage
LIMIT 1000
"""
