"""The metrics of Text Generation Inference (from the source of 3.3.7, in maintenance mode: router/src/server.rs, backends/).

It counts requests, not tokens: the mean time per token is one observation per request, made when the request ends. A request of a client
that disconnected is a failure of kind "dropped". There is no gauge of the KV cache and no counter of cached prefixes.
"""

from __future__ import annotations

from legato_gpu_agent.engines.engine import EngineKind, histogram, number

__all__ = ["TGI"]

TGI = EngineKind(
    kind="tgi",
    title="Text Generation Inference",
    prefix="tgi_",
    ports=(3000, 8080),
    rules=(
        number("tgi_batch_current_size", "requests.running"),
        number("tgi_queue_size", "requests.waiting"),
        number("tgi_request_success", "requests.finished"),
        number("tgi_request_failure", "requests.cancelled", err="dropped"),
        histogram("tgi_request_mean_time_per_token_duration", "itl", per="request"),
        histogram("tgi_request_queue_duration", "queue.time"),
        histogram("tgi_request_duration", "request.time"),
    ),
    lacks={
        "kv_cache.utilization": "TGI has no gauge of its KV cache",
        "preemptions": "TGI has no counter of preemptions",
        "tokens.prompt": "TGI records a prompt's length when its request ends",
        "tokens.generated": "TGI records a response's length when its request ends",
        "prefix_cache.queries": "TGI has no counters of its prefix cache",
        "prefix_cache.hits": "TGI has no counters of its prefix cache",
        "speculation.draft_tokens": "TGI counts tokens that speculation skipped, not drafts",
        "speculation.accepted_tokens": "TGI records them when a request ends",
        "ttft": "TGI has no histogram of it",
    },
)
