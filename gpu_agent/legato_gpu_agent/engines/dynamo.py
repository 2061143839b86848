"""The metrics of NVIDIA Dynamo's front end and of its workers (from the wheel of 1.6.1: prometheus_names).

The front end sees requests as a client does: queued, in flight, cancelled, with times. The engine behind it exposes its own families on the
worker's system port. A worker counts requests on arrival. DYN_METRICS_PREFIX changes the prefix of all names; then they are not recognised.
"""

from __future__ import annotations

from legato_gpu_agent.engines.engine import EngineKind, histogram, number

__all__ = ["DYNAMO_COMPONENT", "DYNAMO_FRONTEND"]

DYNAMO_FRONTEND = EngineKind(
    kind="dynamo_frontend",
    title="Dynamo's front end",
    prefix="dynamo_frontend_",
    ports=(8000,),
    rules=(
        number("dynamo_frontend_active_requests", "requests.running"),
        number("dynamo_frontend_queued_requests", "requests.waiting"),
        number("dynamo_frontend_requests_total", "requests.finished", keep={"status": "reason"}),
        number("dynamo_frontend_requests_total", "requests.cancelled", error_type="cancelled"),
        number("dynamo_frontend_output_tokens_total", "tokens.generated"),
        histogram("dynamo_frontend_time_to_first_token_seconds", "ttft"),
        histogram("dynamo_frontend_inter_token_latency_seconds", "itl", per="token"),
        histogram("dynamo_frontend_request_duration_seconds", "request.time"),
    ),
    lacks={
        name: "the engine's own metrics have it, on the worker's system port"
        for name in (
            "kv_cache.utilization",
            "preemptions",
            "tokens.prompt",
            "prefix_cache.queries",
            "prefix_cache.hits",
            "queue.time",
            "speculation.draft_tokens",
            "speculation.accepted_tokens",
        )
    },  # fmt: skip
    hint="add the workers' system ports (DYN_SYSTEM_PORT) to LEGATO_ENGINES: they serve the engine's own families",
)
DYNAMO_COMPONENT = EngineKind(
    kind="dynamo_component",
    title="Dynamo's worker",
    prefix="dynamo_component_",
    ports=(8081, 9090),
    rules=(
        number("dynamo_component_inflight_requests", "requests.running"),
        number("dynamo_component_gpu_cache_usage_percent", "kv_cache.utilization"),
        number("dynamo_component_kv_cache_hit_rate", "prefix_cache.hit_rate"),
        number("dynamo_component_cancellation_total", "requests.cancelled"),
        histogram("dynamo_component_request_duration_seconds", "request.time"),
    ),
    lacks={
        name: "the engine's own families at the same endpoint have it, if the engine exposes them"
        for name in (
            "requests.waiting",
            "preemptions",
            "tokens.prompt",
            "tokens.generated",
            "itl",
            "ttft",
            "queue.time",
            "prefix_cache.queries",
            "prefix_cache.hits",
            "speculation.draft_tokens",
            "speculation.accepted_tokens",
        )
    },  # fmt: skip
)
