"""SGLang's metrics, served with --enable-metrics (from the source of 0.5.23: sglang/srt/observability/metrics_collector.py).

Its token counters with names like vLLM's grow when a request ends, so the real-time counters are used. Its gauges are as old as the last
prefill or the last 40 decode steps. Its inter-token latency is divided by the number of new tokens. Several tensor-parallel ranks expose
some families each, so only the first rank counts: with data-parallel attention each dp_rank has separate ranks (of 8 ranks in 4, dp_rank 1
has tp_rank 2 and 3). Computed tokens and cached tokens add up to the tokens looked up in the cache.
"""

from __future__ import annotations

from legato_gpu_agent.engines.engine import EngineKind, histogram, number

__all__ = ["SGLANG"]

SGLANG = EngineKind(
    kind="sglang",
    title="SGLang",
    prefix="sglang:",
    rank_label="dp_rank",
    required_labels={"pp_rank": "0"},
    lowest_label="tp_rank",
    ports=(30000,),
    rules=(
        # With --enable-priority-scheduling each priority has a sample besides that of all.
        number("sglang:num_running_reqs", "requests.running", priority=""),
        number("sglang:num_queue_reqs", "requests.waiting", priority=""),
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
        "speculation.draft_tokens": "SGLang exposes the length and rate of acceptance as gauges instead",
        "speculation.accepted_tokens": "SGLang exposes the length and rate of acceptance as gauges instead",
    },
    hint=(
        "its gauges are updated every 40 decode steps: --decode-log-interval 1 updates them at each step; "
        "--enable-forward-pass-metrics --forward-pass-metrics-ipc-name ipc:///run/sglang/fpm publishes every step, for the agent's "
        "LEGATO_FORWARD_PASSES=ID=ipc:///run/sglang/fpm.0"
    ),
)
