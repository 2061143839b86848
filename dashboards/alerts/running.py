"""The SQL of the rules on streams that are stalled now, while they run: one row per service and vantage, with ``firing`` and figures.

The burn rates count streams that have ended. If all streams of a service freeze, none ends, so these rules read what the SDK reports about
running streams: those without content for 8 s or more, and the number in flight. A stream with a first content stands still then. One
without may think for a long time before its first output, so it must wait for longer than is usual for its service and model.
"""

from __future__ import annotations

from dashboards.sql_fragments import quantile
from legato_ingest.definitions import VANTAGES

__all__ = ["STALLED", "UNANSWERED"]

# A page needs this many streams. Several streams are silent at once only if something is wrong.
_STREAMS_MIN = 3
# The shortest silence of a stream that counts, after its first content and before it: the second and the third report of the SDK.
_SILENCE_US_MIN, _WAIT_US_MIN = 8_000_000, 30_000_000
# And their shares of those in flight. Streams with long waits are a larger share of these than of all streams, so their share must be
# higher. It is below a half because of time-outs: of streams that end after 60 s, half are not 30 s old.
_STALLED_SHARE_MIN, _UNANSWERED_SHARE_MIN = 0.1, 0.4
# Twice the time in which 99 % of the streams of a week had their first content; with fewer than 20 of them it is not known. A week has the
# hour of a nightly job, and the days before an idle one.
_USUAL_TIMES, _USUAL_LEVEL, _USUAL_STREAMS_MIN, _USUAL_DAYS = 2, 0.99, 20, 7
# A process reports its number every 5 s: after `_REPORTED_S` each one has reported once more. One that has not reported for `_GONE_S` has
# ended, as in the view `streams_in_flight`, unless `legato serve` itself received nothing: the last numbers count for `_KNOWN_S` then.
_REPORTED_S, _GONE_S, _KNOWN_S = 8, 15, 120
_PLACE = f"indexOf({list(VANTAGES)}, vantage::String)"
_SILENT = f"""silent AS
    (
        SELECT tenant, service_name AS service, vantage, trace_id, silence_us, {_PLACE} AS place
        FROM stalled_streams
        WHERE reported_us >= {_SILENCE_US_MIN} AND gap_start_us > 0
    )"""
_LATE = f"""usual AS
    (
        -- The streams of each model, and those of all models for a stream of which the model is not known yet.
        SELECT tenant, service_name::String AS service, vantage::String AS vantage, of_model AS model, sumMap(ttft_buckets) AS firsts
        FROM stream_hours FINAL
        ARRAY JOIN arrayDistinct([model::String, '']) AS of_model
        WHERE minute >= toStartOfHour(now() - INTERVAL {_USUAL_DAYS} DAY, 'UTC') AND (tenant, service_name) IN
        (
            -- These and more, without the work of `stalled_streams`.
            SELECT tenant, service_name
            FROM stream_silences
            WHERE received_at > now64(3) - INTERVAL 1 HOUR AND silence_us >= {_WAIT_US_MIN} AND gap_start_us = 0
        )
        GROUP BY tenant, service, vantage, of_model
        HAVING arraySum(mapValues(firsts)) >= {_USUAL_STREAMS_MIN}
    ),
    silent AS
    (
        SELECT tenant, service, vantage, trace_id, silence_us, place
        FROM
        (
            SELECT
                tenant, service_name::String AS service, vantage::String AS vantage, model::String AS model, trace_id, silence_us,
                {_PLACE} AS place
            FROM stalled_streams
            WHERE reported_us >= {_WAIT_US_MIN} AND gap_start_us = 0
        ) AS waiting
        INNER JOIN usual USING (tenant, service, vantage, model)
        WHERE silence_us >= {_USUAL_TIMES} * {quantile(_USUAL_LEVEL, "firsts")}
    )"""


_FLYING = f"""flying AS
    (
        -- `running` is the number in flight now. `known` equals it, except where no sample arrived for a time. The newest sample that is
        -- older than {_REPORTED_S} s shows since when: some processes have not reported again, and their numbers of before count.
        SELECT
            tenant, service, vantage, now64(3) - INTERVAL {_GONE_S} SECOND AS since,
            toUInt64(sumIf(newest, sampled_at > since)) AS running,
            toUInt64(sumIf(newest, sampled_at > least(since, settled - INTERVAL {_REPORTED_S} SECOND))) AS known
        FROM
        (
            SELECT tenant, service, vantage, newest, sampled_at, max(settled_at) OVER (PARTITION BY tenant, service, vantage) AS settled
            FROM
            (
                SELECT
                    tenant, series, attributes['service.name'] AS service, attributes['legato.stream.vantage'] AS vantage,
                    argMax(value, recorded_at) AS newest, max(received_at) AS sampled_at,
                    maxIf(received_at, received_at <= now64(3) - INTERVAL {_REPORTED_S} SECOND) AS settled_at
                FROM node_samples
                WHERE metric = 'legato.stream.in_flight' AND recorded_at > now64(9) - INTERVAL 1 DAY
                    AND received_at > now64(3) - INTERVAL {_KNOWN_S} SECOND
                GROUP BY tenant, series, service, vantage
            )
        )
        GROUP BY tenant, service, vantage
    )"""


def _statement(silent: str, share_min: float, guard: str = "") -> str:
    """Return the statement about the streams that ``silent`` selects, if they are this share of those in flight.

    ``guard``: a further condition on ``running``, the reported number in flight or NULL, and ``standing``, the number of the selected ones.
    """
    return f"""WITH
    {_FLYING},
    {silent},
    counted AS
    (
        SELECT
            tenant, service, vantage, trace_id, silence_us, place,
            count() OVER (PARTITION BY tenant, service, vantage) AS standing, greatest(coalesce(known, 0), standing) AS flown,
            {guard}standing >= {_STREAMS_MIN} AND standing >= {share_min} * flown AS is_enough
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


STALLED = _statement(_SILENT, _STALLED_SHARE_MIN)
# Of an unknown number in flight, three that wait may be few. If less than half of those that wait are in flight, most are of a process that
# was killed. A smaller difference may be a process of which no sample arrives.
UNANSWERED = _statement(_LATE, _UNANSWERED_SHARE_MIN, "2 * coalesce(running, 0) >= standing AND ")
