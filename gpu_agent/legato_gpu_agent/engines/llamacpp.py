"""llama.cpp's server page (read in llama_cpp_python 0.3.36: tools/server), there with --metrics.

One idea: counters of tokens and two gauges; no histogram, no KV cache, and nothing about requests that left. Numbers have six digits, so a
large counter moves in steps. Whoever reads the page takes its two speeds (``…_tokens_seconds``) from all others, as they begin anew.
"""

from __future__ import annotations

from legato_gpu_agent.engines import Engine, number

__all__ = ["LLAMACPP"]

LLAMACPP = Engine(
    kind="llamacpp",
    title="llama.cpp",
    mark="llamacpp:",
    # The second from a coming release on.
    ports=(8080, 9931),
    rules=(
        number("llamacpp:requests_processing", "requests.running"),
        number("llamacpp:requests_deferred", "requests.waiting"),
        number("llamacpp:prompt_tokens_total", "tokens.prompt"),
        number("llamacpp:prompt_tokens_total", "prefix_cache.queries"),
        number("llamacpp:prompt_tokens_cached_total", "prefix_cache.queries"),
        number("llamacpp:prompt_tokens_cached_total", "prefix_cache.hits"),
        number("llamacpp:spec_decode_num_drafts_total", "speculation.drafts"),
        number("llamacpp:spec_decode_num_draft_tokens_total", "speculation.draft_tokens"),
        number("llamacpp:spec_decode_num_accepted_tokens_total", "speculation.accepted_tokens"),
    ),
    lacks={
        "tokens.generated": "llama.cpp counts tokens when their request is over",
        "kv_cache.utilization": "llama.cpp tells it no more",
        "preemptions": "llama.cpp preempts nobody",
        "requests.cancelled": "llama.cpp counts no client that left",
        "ttft": "llama.cpp has no histograms",
        "itl": "llama.cpp has no histograms",
        "queue.time": "llama.cpp has no histograms",
    },
)
