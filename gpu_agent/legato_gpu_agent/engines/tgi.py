"""Text Generation Inference's page (read at 3.3.7: router/src/server.rs, backends/; in maintenance mode).

One idea: it counts requests and means, not tokens: the time per token is one observation a request, when that is over. A request whose
client left is a failure of the kind "dropped". There is no gauge of the KV cache and no counter of prefixes.
"""

from __future__ import annotations

from legato_gpu_agent.engines import Engine, histogram, number

__all__ = ["TGI"]

TGI = Engine(
    kind="tgi",
    title="Text Generation Inference",
    mark="tgi_",
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
        "preemptions": "TGI counts none",
        "tokens.prompt": "TGI tells a prompt's length when its request is over",
        "tokens.generated": "TGI tells a response's length when its request is over",
        "prefix_cache.queries": "TGI counts no prefixes",
        "prefix_cache.hits": "TGI counts no prefixes",
        "speculation.draft_tokens": "TGI counts tokens that speculation skipped, and no drafts",
        "speculation.accepted_tokens": "TGI tells them when a request is over",
        "ttft": "TGI has no histogram of it",
    },
)
