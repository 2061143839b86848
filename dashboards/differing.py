"""What else differs between the two sides of a comparison, in SQL: shares of the values of other dimensions.

One statement reads rollups, exactly; the other reads streams of a sample of minutes, for what rollups do not have. Neither names a cause.
"""

from __future__ import annotations

from dashboards.sides import BEGAN, picks, sides, streams_of
from dashboards.sql_fragments import DIMENSIONS

__all__ = ["CHANGED", "REQUESTS"]

_PICKS = picks()


def _changed(pairs: str) -> str:
    """The largest differences of share in each dimension. ``pairs``: a subquery with ``side``, ``dimension``, ``name``, ``n``."""
    return f"""SELECT
    dimension, name AS value, a / n_a AS "share of A", b / n_b AS "share of B", "share of B" - "share of A" AS "B − A", a AS "A", b AS "B",
    n_a AS "n of A", n_b AS "n of B"
FROM
(
    SELECT
        *,
        row_number() OVER (PARTITION BY dimension ORDER BY abs(toInt64(b * n_a) - toInt64(a * n_b)) DESC, name) AS place
    FROM
    (
        SELECT *, sum(a) OVER (PARTITION BY dimension) AS n_a, sum(b) OVER (PARTITION BY dimension) AS n_b
        FROM
        (
            SELECT dimension, if(named = '', '(none)', named) AS name, sumIf(n, side = 'A') AS a, sumIf(n, side = 'B') AS b
            FROM
            ({pairs}
            )
            WHERE dimension != by_name
            GROUP BY dimension, name
        )
    )
)
WHERE place <= 3 AND n_a > 0 AND n_b > 0 AND "share of A" != "share of B"
ORDER BY max(abs("B − A")) OVER (PARTITION BY dimension) DESC, dimension, abs("B − A") DESC, name"""


_COLUMNS = {**DIMENSIONS, "emitter": "emitter", "objective": "objective"}
_LISTED = ", ".join(f"('{name}', {column}::String)" for name, column in _COLUMNS.items())
CHANGED = f"""
{_PICKS}
{
    _changed(f'''
            SELECT side, pair.1 AS dimension, pair.2 AS named, streams AS n
            FROM
            (
                SELECT side, [{_LISTED}] AS pairs, sum(streams) AS streams
                {sides("stream", "streams")}
                GROUP BY side, pairs
            )
            ARRAY JOIN pairs AS pair''')
}"""
# A scalar, because two parts of the statement need it. Up to sixty minutes of each side, drawn by a hash of the minute, and up to the
# minute in which 100,000 streams of the side are complete.
_DRAWN = f"""(
        SELECT groupUniqArray(minute)
        FROM
        (
            SELECT
                minute, row_number() OVER drawn AS place, sum(n) OVER drawn - n AS earlier
            FROM (SELECT side, minute, sum(streams) AS n {sides("stream", "streams", minutes=True)} GROUP BY side, minute)
            WINDOW drawn AS (PARTITION BY side ORDER BY intDiv(toUnixTimestamp(minute), 60) * 2654435761 % 4294967296)
        )
        WHERE place <= 60 AND earlier < 100000
    ) AS drawn_minutes"""
_MINUTES = "SELECT arrayJoin(drawn_minutes)"
_STEP = "toString(toUInt64(pow(2, ceil(log2(greatest(ifNull({0}, 1), 1))))))"
_UP_TO = f"if({{0}} IS NULL, '(unknown)', concat('up to ', {_STEP}))"
_OF_REQUESTS = {
    "prompt tokens": _UP_TO.format("input_tokens"),
    "output tokens": _UP_TO.format("output_tokens"),
    "streams per minute of the service": _UP_TO.format("load"),
    "engine": "if(engine_id = '', served, engine_id::String)",
    "finish reason": "finish_reason::String",
}
_REQUESTS = ", ".join(f"('{name}', {text})" for name, text in _OF_REQUESTS.items())
_READ = """tenant, vantage, service_name, trace_id, input_tokens, output_tokens, engine_id, finish_reason,
        count() OVER (PARTITION BY tenant, vantage, service_name, toStartOfMinute(start_time)) AS load"""
REQUESTS = f"""
{_PICKS},
    {_DRAWN}
{
    _changed(f'''
            SELECT side, pair.1 AS dimension, pair.2 AS named, count() AS n
            FROM
            (
                SELECT side, [{_REQUESTS}] AS pairs
                FROM (SELECT *, side {streams_of(_MINUTES, _READ)}) AS drawn
                ANY LEFT JOIN
                (
                    SELECT tenant, trace_id, any(engine_id::String) AS served
                    FROM stream_revs
                    WHERE engine_id != '' AND {BEGAN} AND toStartOfMinute(start_time) IN ({_MINUTES})
                    GROUP BY tenant, trace_id
                ) AS known USING (tenant, trace_id)
            )
            ARRAY JOIN pairs AS pair
            GROUP BY side, dimension, named''')
}"""
