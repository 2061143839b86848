"""The variables of the dashboard Serving nodes, and the conditions in SQL that they give.

A service or a model chooses engines: those that served its streams. Engines and hosts that can be chosen follow from the variables before
them. Rollups of streams do not name engines, so the engines of a service are those with stalls of its streams in the range, and those that
its streams name in the last 15 minutes of the range, or, at a server, in the 15 minutes with most stalls. Nothing is read for this while
service and model are at All.
"""

from __future__ import annotations

from dashboards.sample_sql import seen
from dashboards.sql_fragments import ENGINE, IN_RANGE, every, filters

__all__ = ["ENGINES", "HOSTS", "KNOWN", "SAMPLED", "STEPPED", "VARIABLES"]

VARIABLES = {"tenant": "tenant", "service": "service_name", "model": "model", "engine": "engine_id", "host": "host"}
"""The variables and the columns of their options."""
_SERVICE = {name: VARIABLES[name] for name in ("tenant", "service", "model")}
_EVERY = f"{every('service')} AND {every('model')}"
_RECENT = "start_time > $__toTime - INTERVAL 15 MINUTE AND start_time <= $__toTime"
# A server's stalls are in `stall_minutes` under its client's service, so its own streams name their engines: those of the minutes in which
# they stalled most, which bounds the number of rows to read.
_WORST_MINUTES = f"""
            SELECT minute FROM stream_minutes FINAL
            WHERE NOT ({_EVERY}) AND {IN_RANGE} AND vantage != 'client' AND stalls_250ms > 0
                AND {filters(_SERVICE)}
            GROUP BY minute
            ORDER BY sum(stalls_250ms) DESC, minute DESC
            LIMIT 15"""
_SERVING = f"""SELECT tenant, engine_id FROM stall_minutes
        WHERE NOT ({_EVERY}) AND {IN_RANGE} AND stalls > 0
            AND {filters(_SERVICE)}
        UNION ALL
        SELECT tenant, engine_id FROM stream_revs
        WHERE NOT ({_EVERY}) AND $__timeFilter_ms(start_time) AND engine_id != '' AND toStartOfMinute(start_time) IN
        ({_WORST_MINUTES}
        )
            AND {filters(_SERVICE)}
        UNION ALL
        SELECT tenant, engine_id FROM stream_revs
        WHERE NOT ({_EVERY}) AND {_RECENT} AND engine_id != '' AND (tenant, trace_id) IN
        (
            SELECT tenant, trace_id FROM stream_revs
            WHERE NOT ({_EVERY}) AND {_RECENT}
                AND {filters(_SERVICE)}
        )"""
_SERVED = f"""({_EVERY} OR (tenant, engine_id) IN
    (
        {_SERVING}
    ))"""
STEPPED = f"{filters(ENGINE)}\n    AND {_SERVED}"
"""The condition for rows with a tenant and an engine."""
SAMPLED = f"{filters({**ENGINE, 'host': 'host'})}\n    AND {_SERVED}"
"""The condition for samples, which have a host, too."""
_SCRAPED = "'legato.engine.up', 'vllm:num_requests_running'"
# Engines with step records, and engines with a scraped metrics endpoint.
KNOWN = f"""(
    SELECT tenant, engine_id, minute FROM engine_minutes WHERE {IN_RANGE}
    UNION ALL
    SELECT * FROM {seen("tenant, engine_id", _SCRAPED)}
)"""
"""The source of the tenants that can be chosen."""
ENGINES = f"""(
    SELECT * FROM {KNOWN}
    WHERE {filters({"tenant": "tenant"})}
    AND {_SERVED}
)"""
"""The source of the engines that can be chosen."""
_HOSTS_WITH = f"'system.cpu.utilization', 'hw.gpu.clock.sm', 'hw.gpu.power', 'hw.power', {_SCRAPED}"
HOSTS = seen("host", _HOSTS_WITH, STEPPED)
"""The source of the hosts that can be chosen."""
