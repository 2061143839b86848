"""vLLM's metrics (V1 engine; from the source of 0.32 and 0.33: vllm/v1/metrics/loggers.py).

Its inter-token latency is one observation per request and step, not divided by the number of new tokens (several with speculation). A
preemption is counted when the request is resumed, a prompt when its prefill is complete. A request of a client that disconnected is not
counted.
"""

from __future__ import annotations

from legato_gpu_agent.engines.engine import EngineKind, histogram, number

__all__ = ["VLLM"]

VLLM = EngineKind(
    kind="vllm",
    title="vLLM",
    prefix="vllm:",
    rank_label="engine",
    ports=(8000,),
    rules=(
        number("vllm:num_requests_running", "requests.running"),
        number("vllm:num_requests_waiting", "requests.waiting"),
        number("vllm:request_success_total", "requests.finished", keep={"finished_reason": "reason"}),
        number("vllm:kv_cache_usage_perc", "kv_cache.utilization"),
        number("vllm:num_preemptions_total", "preemptions"),
        number("vllm:prompt_tokens_total", "tokens.prompt"),
        number("vllm:generation_tokens_total", "tokens.generated"),
        number("vllm:prefix_cache_queries_total", "prefix_cache.queries"),
        number("vllm:prefix_cache_hits_total", "prefix_cache.hits"),
        number("vllm:spec_decode_num_drafts_total", "speculation.drafts"),
        number("vllm:spec_decode_num_draft_tokens_total", "speculation.draft_tokens"),
        number("vllm:spec_decode_num_accepted_tokens_total", "speculation.accepted_tokens"),
        histogram("vllm:time_to_first_token_seconds", "ttft"),
        histogram("vllm:inter_token_latency_seconds", "itl", per="step"),
        histogram("vllm:request_queue_time_seconds", "queue.time"),
        histogram("vllm:request_prefill_time_seconds", "prefill.time"),
        histogram("vllm:request_decode_time_seconds", "decode.time"),
        histogram("vllm:e2e_request_latency_seconds", "request.time"),
        histogram("vllm:iteration_tokens_total", "step.tokens"),
    ),
    lacks={"requests.cancelled": "vLLM does not count requests of clients that disconnected"},
    hint=(
        "finer buckets separate more gaps from the engine's: --custom-histogram-buckets "
        "'{\"inter_token_latency\": [0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 5, 10]}'"
    ),
)
