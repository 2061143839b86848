"""The metrics of Triton Inference Server with the TensorRT-LLM backend, at port 8002 (from the docs of tensorrtllm_backend, 2026).

There is one family per subject with the name of the quantity as a label. All are gauges of the last iteration; none counts tokens or times.
"""

from __future__ import annotations

from legato_gpu_agent.engines.engine import EngineKind, number

__all__ = ["TRITON"]

_NO_COUNTER = "Triton exposes gauges of requests and blocks, and no counter of it"
TRITON = EngineKind(
    kind="triton",
    title="Triton with TensorRT-LLM",
    prefix="nv_",
    ports=(8002,),
    rules=(
        number("nv_trt_llm_request_metrics", "requests.running", request_type="active"),
        number("nv_trt_llm_request_metrics", "requests.waiting", request_type="waiting"),
        number("nv_trt_llm_request_metrics", "step.requests", request_type="scheduled"),
        number("nv_trt_llm_kv_cache_block_metrics", "kv_cache.utilization", kv_cache_block_type="fraction"),
        number("nv_trt_llm_inflight_batcher_metrics", "preempted", inflight_batcher_specific_metric="paused_requests"),
    ),
    lacks={
        name: _NO_COUNTER
        for name in (
            "preemptions", "tokens.prompt", "tokens.generated", "prefix_cache.queries", "prefix_cache.hits", "speculation.draft_tokens",
            "speculation.accepted_tokens", "ttft", "itl", "queue.time", "requests.cancelled",
        )
    },
)  # fmt: skip
