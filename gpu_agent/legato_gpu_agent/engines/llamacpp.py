"""The metrics of llama.cpp's server, served with --metrics (from the source in llama_cpp_python 0.3.36: tools/server).

It has counters of tokens and two gauges, no histogram, no KV cache usage and no cancelled requests. Numbers have six digits, so a large
counter moves in steps. A scrape resets its two speeds (``…_tokens_seconds``), so each scraper takes them from all others; they are not
used here.
"""

from __future__ import annotations

from legato_gpu_agent.engines.engine import EngineKind, number

__all__ = ["LLAMACPP"]

LLAMACPP = EngineKind(
    kind="llamacpp",
    title="llama.cpp",
    prefix="llamacpp:",
    # 9931 is the default of a coming release.
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
        "tokens.generated": "llama.cpp counts tokens when their request ends",
        "kv_cache.utilization": "llama.cpp no longer exposes it",
        "preemptions": "llama.cpp does not preempt requests",
        "requests.cancelled": "llama.cpp does not count clients that disconnected",
        "ttft": "llama.cpp has no histograms",
        "itl": "llama.cpp has no histograms",
        "queue.time": "llama.cpp has no histograms",
    },
)
