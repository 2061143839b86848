"""LMDeploy's metrics, served unless --disable-metrics is given (from the source of 0.18: lmdeploy/metrics/loggers.py).

The families resemble vLLM's, without preemptions. Failed, cancelled and aborted requests share one counter. Gauges are updated every 10 s.
Its tokens per iteration are those of one request.
"""

from __future__ import annotations

from legato_gpu_agent.engines.engine import EngineKind, histogram, number

__all__ = ["LMDEPLOY"]

LMDEPLOY = EngineKind(
    kind="lmdeploy",
    title="LMDeploy",
    prefix="lmdeploy:",
    rank_label="engine",
    ports=(23333,),
    rules=(
        number("lmdeploy:num_requests_running", "requests.running"),
        number("lmdeploy:num_requests_waiting", "requests.waiting"),
        number("lmdeploy:request_success_total", "requests.finished", keep={"finished_reason": "reason"}),
        number("lmdeploy:gpu_cache_usage_perc", "kv_cache.utilization"),
        number("lmdeploy:prompt_tokens_total", "tokens.prompt"),
        number("lmdeploy:generation_tokens_total", "tokens.generated"),
        number("lmdeploy:prefix_cache_hit_rate", "prefix_cache.hit_rate"),
        number("lmdeploy:spec_decode_num_drafts_total", "speculation.drafts"),
        number("lmdeploy:spec_decode_num_draft_tokens_total", "speculation.draft_tokens"),
        number("lmdeploy:spec_decode_num_accepted_tokens_total", "speculation.accepted_tokens"),
        histogram("lmdeploy:time_to_first_token_seconds", "ttft"),
        histogram("lmdeploy:iter_token_latency", "itl", per="step"),
        histogram("lmdeploy:request_queue_time_seconds", "queue.time"),
        histogram("lmdeploy:request_prefill_time_seconds", "prefill.time"),
        histogram("lmdeploy:request_decode_time_seconds", "decode.time"),
        histogram("lmdeploy:e2e_request_latency_seconds", "request.time"),
    ),
    lacks={
        "preemptions": "LMDeploy has no counter of preemptions",
        "requests.cancelled": "LMDeploy counts failed, cancelled and aborted requests together",
        "prefix_cache.queries": "LMDeploy exposes only the rate",
        "prefix_cache.hits": "LMDeploy exposes only the rate",
    },
)
