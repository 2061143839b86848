"""SGLang's page (read at 0.5.23: sglang/srt/observability/metrics_collector.py), there with --enable-metrics.

One idea: its token counters named like vLLM's grow when a request ends, so the live ones are taken. Its gauges are as old as the last
prefill or the last 40 decode steps. Its inter-token latency is divided by the tokens that came. Of several tensor-parallel ranks some
families are told by each, so the first one's count: with data-parallel attention each dp_rank has its own (of 8 ranks in 4, dp_rank 1 has
tp_rank 2 and 3). What it computed and what it found in a cache add up to what was asked of the cache.
"""

from __future__ import annotations

from legato_gpu_agent.engines import Engine, histogram, number

__all__ = ["SGLANG"]

SGLANG = Engine(
    kind="sglang",
    title="SGLang",
    mark="sglang:",
    rank="dp_rank",
    only={"pp_rank": "0"},
    lowest="tp_rank",
    ports=(30000,),
    rules=(
        number("sglang:num_running_reqs", "requests.running"),
        number("sglang:num_queue_reqs", "requests.waiting"),
        number("sglang:num_requests_total", "requests.finished"),
        number("sglang:num_aborted_requests_total", "requests.cancelled"),
        number("sglang:token_usage", "kv_cache.utilization"),
        number("sglang:num_retracted_requests_total", "preemptions"),
        number("sglang:num_retracted_reqs", "preempted"),
        number("sglang:realtime_tokens_total", "tokens.prompt", mode="prefill_compute"),
        number("sglang:realtime_tokens_total", "tokens.generated", mode="decode"),
        number("sglang:cache_hit_rate", "prefix_cache.hit_rate"),
        number("sglang:prefill_effective_tokens_total", "prefix_cache.queries"),
        number("sglang:prefill_effective_tokens_total", "prefix_cache.hits", mode="device_hit"),
        number("sglang:prefill_effective_tokens_total", "prefix_cache.hits", mode="host_hit"),
        number("sglang:prefill_effective_tokens_total", "prefix_cache.hits", mode="storage_hit"),
        number("sglang:spec_accept_length", "speculation.accept_length"),
        number("sglang:spec_accept_rate", "speculation.accept_rate"),
        histogram("sglang:time_to_first_token_seconds", "ttft"),
        histogram("sglang:inter_token_latency_seconds", "itl", per="token"),
        histogram("sglang:queue_time_seconds", "queue.time"),
        histogram("sglang:e2e_request_latency_seconds", "request.time"),
    ),
    lacks={
        "speculation.draft_tokens": "SGLang tells the length and rate of acceptance as gauges instead",
        "speculation.accepted_tokens": "SGLang tells the length and rate of acceptance as gauges instead",
    },
    hint=(
        "its gauges are renewed every 40 decode steps: --decode-log-interval 1 renews them at each; "
        "--enable-forward-pass-metrics tells every step"
    ),
)
