"""The SQL of the servers in a trace with clients that are those of none of them: servers of calls without a recorded client.

The stalls of such a server are judged at the server. This module holds the statement; `streams` and `superseded` send it.
"""

from __future__ import annotations

from legato_ingest.definitions import SUPERSEDED_OUTCOME

__all__ = ["KNOWS_CHUNKS", "MAY_HAVE_OTHERS", "OF_OTHER_CALLS"]

# A row of a client that takes the place of its server: it runs, or has chunks. Clients of other libraries often have a summary alone.
KNOWS_CHUNKS = f"vantage = 'client' AND outcome != '{SUPERSEDED_OUTCOME}' AND (chunks IS NOT NULL OR NOT ended)"

# The rows of the traces that may have a server of no client: an id that is no client's shows this only if another server of the trace has
# a client's, because a gateway may give its own id to each response. Few traces pass, so what follows is about few rows.
_MIXED = f"""
SELECT tenant, trace_id, span_id, parent_span_id, is_client AS is_below_0, is_server AND response_id != '' AND NOT is_named AS is_other
FROM
(
    SELECT
        *, countIf(is_server AND is_named) OVER calls AS named, countIf(is_client AND response_id = '') OVER calls AS unnamed,
        countIf(is_server AND response_id != '' AND NOT is_named) OVER calls AS others
    FROM
    (
        SELECT *, countIf(is_client) OVER (PARTITION BY tenant, trace_id, response_id) > 0 AS is_named
        FROM
        (
            SELECT
                tenant, trace_id, span_id, parent_span_id, response_id, {KNOWS_CHUNKS} AS is_client,
                vantage = 'server' AND outcome != '{SUPERSEDED_OUTCOME}' AS is_server
            FROM stream_revs FINAL
            PREWHERE {{around}} AND {{traces}}
        )
    )
    WINDOW calls AS (PARTITION BY tenant, trace_id)
)
WHERE named > 0 AND unnamed = 0 AND others > 0"""
# Rows above a server that are looked at: proxies and gateways between it and a client.
_STEPS = 4


def _with_parents(rows: str) -> str:
    """Return the SQL of these rows, with ``is_below_4``: whether one is a client or has a client among the four rows above it.

    Each step takes the parent's mark. Windows read the rows once, and their time is linear for any parents that a sender makes up.
    """
    for step in range(_STEPS):
        rows = f"""
SELECT tenant, trace_id, span_id, parent_span_id, is_other, is_below_{step} OR is_parent_below AS is_below_{step + 1}
FROM
(
    SELECT *, max(is_below_{step} AND NOT as_child) OVER (PARTITION BY tenant, trace_id, id) AS is_parent_below
    FROM (SELECT *, arrayJoin([0, 1]) AS as_child, if(as_child, parent_span_id, span_id) AS id FROM ({rows}))
)
WHERE as_child"""
    return rows


OF_OTHER_CALLS = f"SELECT tenant, trace_id, span_id FROM ({_with_parents(_MIXED)}) WHERE is_other AND NOT is_below_{_STEPS}"
"""The servers (tenant, trace, span) in some traces that are those of no client of the trace: all clients have other response ids, which
another server has, and none is an ancestor. Otherwise a server is its clients', because a gateway may give a response another id."""

MAY_HAVE_OTHERS = """
SELECT 1 FROM stream_revs
WHERE {around} AND vantage = 'server' AND response_id != '' AND {traces}
GROUP BY tenant, trace_id HAVING uniqExact(response_id) > 1
LIMIT 1"""
"""One row if some of these traces may have a server of ``OF_OTHER_CALLS``, else none: such a trace has servers with two different ids. Few
traces have, and this statement takes a fourth of the time."""
