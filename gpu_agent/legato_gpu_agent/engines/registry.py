"""All supported engines, and the detection of an engine from its exposition text.

A text belongs to the first engine in the order below with a family in it.
"""

from __future__ import annotations

from legato_gpu_agent.engines.dynamo import DYNAMO_COMPONENT, DYNAMO_FRONTEND
from legato_gpu_agent.engines.engine import EngineKind
from legato_gpu_agent.engines.llamacpp import LLAMACPP
from legato_gpu_agent.engines.lmdeploy import LMDEPLOY
from legato_gpu_agent.engines.sglang import SGLANG
from legato_gpu_agent.engines.tensorrt_llm import TENSORRT_LLM
from legato_gpu_agent.engines.tgi import TGI
from legato_gpu_agent.engines.triton import TRITON
from legato_gpu_agent.engines.vllm import VLLM

__all__ = ["ENGINES", "detect_engine"]

# A Dynamo worker exposes its engine's families next to its own; the engine's hold more.
_ORDER = (VLLM, SGLANG, TENSORRT_LLM, LMDEPLOY, LLAMACPP, TGI, DYNAMO_FRONTEND, DYNAMO_COMPONENT, TRITON)
ENGINES = {engine.kind: engine for engine in _ORDER}
"""Engines by kind."""


def detect_engine(text: bytes) -> EngineKind | None:
    """Return the engine that exposes this text, by the families in it; ``None`` for an unknown one."""
    names = {line.split(b"{", 1)[0].split(b" ", 1)[0] for line in text.splitlines() if line and not line.startswith(b"#")}
    for engine in _ORDER:
        if any(name.startswith(engine.prefix.encode()) for name in names):
            return engine
    return None
