"""Every engine whose page the agent reads, in the order in which a page is tried against them.

One idea: one table; a page belongs to the first whose families it has.
"""

from __future__ import annotations

from legato_gpu_agent.engines import Engine
from legato_gpu_agent.engines.dynamo import DYNAMO_COMPONENT, DYNAMO_FRONTEND
from legato_gpu_agent.engines.llamacpp import LLAMACPP
from legato_gpu_agent.engines.lmdeploy import LMDEPLOY
from legato_gpu_agent.engines.sglang import SGLANG
from legato_gpu_agent.engines.tensorrt_llm import TENSORRT_LLM
from legato_gpu_agent.engines.tgi import TGI
from legato_gpu_agent.engines.triton import TRITON
from legato_gpu_agent.engines.vllm import VLLM

__all__ = ["ENGINES", "engine_of_page"]

# A Dynamo worker's page has its engine's families beside its own: the engine's say more.
_ORDER = (VLLM, SGLANG, TENSORRT_LLM, LMDEPLOY, LLAMACPP, TGI, DYNAMO_FRONTEND, DYNAMO_COMPONENT, TRITON)
ENGINES = {engine.kind: engine for engine in _ORDER}
"""By kind."""


def engine_of_page(page: bytes) -> Engine | None:
    """Whose page this is, by the families in it; ``None``: nobody's that is known."""
    names = {line.split(b"{", 1)[0].split(b" ", 1)[0] for line in page.splitlines() if line and not line.startswith(b"#")}
    for engine in _ORDER:
        if any(name.startswith(engine.mark.encode()) for name in names):
            return engine
    return None
