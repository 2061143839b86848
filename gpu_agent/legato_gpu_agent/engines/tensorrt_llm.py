"""TensorRT-LLM's Prometheus page (read in main of 2026: tensorrt_llm/metrics/collector.py), at /prometheus/metrics.

One idea: the page is renewed when a request completes and holds the newest iteration only, so its gauges are coarse; each iteration is told
once by the JSON at /metrics, which drains the same queue: read one of the two.
"""

from __future__ import annotations

from legato_gpu_agent.engines import Engine, histogram, number

__all__ = ["TENSORRT_LLM"]

TENSORRT_LLM = Engine(
    kind="tensorrt_llm",
    title="TensorRT-LLM",
    mark="trtllm_",
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
        "tokens.prompt": "TensorRT-LLM counts a prompt when its request is over",
        "tokens.generated": "TensorRT-LLM counts tokens when their request is over",
        "preemptions": "TensorRT-LLM tells how many are paused now, and counts none",
        "prefix_cache.queries": "TensorRT-LLM counts blocks, not tokens, and tells the rate",
        "prefix_cache.hits": "TensorRT-LLM counts blocks, not tokens, and tells the rate",
        "requests.cancelled": "TensorRT-LLM counts no client that left",
    },
    hint="needs return_perf_metrics: true; with enable_iter_perf_stats: true its JSON at /metrics tells every iteration",
)
