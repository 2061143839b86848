"""TensorRT-LLM's Prometheus metrics at /prometheus/metrics (from the source of main in 2026: tensorrt_llm/metrics/collector.py).

The metrics are updated when a request completes and hold the newest iteration only, so the gauges are coarse. The JSON at /metrics returns
each iteration once and drains the same queue: read one of the two.
"""

from __future__ import annotations

from legato_gpu_agent.engines.engine import EngineKind, histogram, number

__all__ = ["TENSORRT_LLM"]

TENSORRT_LLM = EngineKind(
    kind="tensorrt_llm",
    title="TensorRT-LLM",
    prefix="trtllm_",
    path="/prometheus/metrics",
    ports=(8000,),
    rules=(
        number("trtllm_num_requests_running", "requests.running"),
        number("trtllm_num_requests_waiting", "requests.waiting"),
        number("trtllm_request_success_total", "requests.finished", keep={"finished_reason": "reason"}),
        number("trtllm_kv_cache_utilization", "kv_cache.utilization"),
        number("trtllm_num_paused_requests", "preempted"),
        number("trtllm_kv_cache_hit_rate", "prefix_cache.hit_rate"),
        number("trtllm_spec_decode_num_draft_tokens_total", "speculation.draft_tokens"),
        number("trtllm_spec_decode_num_accepted_tokens_total", "speculation.accepted_tokens"),
        number("trtllm_spec_decode_acceptance_length", "speculation.accept_length"),
        histogram("trtllm_time_to_first_token_seconds", "ttft"),
        histogram("trtllm_time_per_output_token_seconds", "itl", per="request"),
        histogram("trtllm_request_queue_time_seconds", "queue.time"),
        histogram("trtllm_request_prefill_time_seconds", "prefill.time"),
        histogram("trtllm_request_decode_time_seconds", "decode.time"),
        histogram("trtllm_e2e_request_latency_seconds", "request.time"),
        number("trtllm_iteration_latency_seconds", "step.time"),
        number("trtllm_num_scheduled_requests", "step.requests"),
    ),
    lacks={
        "tokens.prompt": "TensorRT-LLM counts a prompt when its request ends",
        "tokens.generated": "TensorRT-LLM counts tokens when their request ends",
        "preemptions": "TensorRT-LLM exposes the number of paused requests, not a counter",
        "prefix_cache.queries": "TensorRT-LLM counts blocks, not tokens, and exposes the rate",
        "prefix_cache.hits": "TensorRT-LLM counts blocks, not tokens, and exposes the rate",
        "requests.cancelled": "TensorRT-LLM does not count clients that disconnected",
    },
    hint="needs return_perf_metrics: true; with enable_iter_perf_stats: true its JSON at /metrics has every iteration",
)
