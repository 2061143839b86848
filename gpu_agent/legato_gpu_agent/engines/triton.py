"""Triton Inference Server's page with the TensorRT-LLM back end (:8002; triton-inference-server/tensorrtllm_backend, docs of 2026).

One idea: one family a subject, with the figure's name as a label; all are gauges of the last iteration, with none of tokens or times
between them.
"""

from __future__ import annotations

from legato_gpu_agent.engines import Engine, number

__all__ = ["TRITON"]

_COUNTS_NONE = "Triton's page has gauges of requests and blocks, and no counter of it"
TRITON = Engine(
    kind="triton",
    title="Triton with TensorRT-LLM",
    mark="nv_",
    ports=(8002,),
    rules=(
        number("nv_trt_llm_request_metrics", "requests.running", request_type="active"),
        number("nv_trt_llm_request_metrics", "requests.waiting", request_type="waiting"),
        number("nv_trt_llm_request_metrics", "step.requests", request_type="scheduled"),
        number("nv_trt_llm_kv_cache_block_metrics", "kv_cache.utilization", kv_cache_block_type="fraction"),
        number("nv_trt_llm_inflight_batcher_metrics", "preempted", inflight_batcher_specific_metric="paused_requests"),
    ),
    lacks={
        name: _COUNTS_NONE
        for name in (
            "preemptions", "tokens.prompt", "tokens.generated", "prefix_cache.queries", "prefix_cache.hits", "speculation.draft_tokens",
            "speculation.accepted_tokens", "ttft", "itl", "queue.time", "requests.cancelled",
        )
    },
)  # fmt: skip
