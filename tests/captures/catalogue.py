"""The emitters that are captured: their packages, script, scenarios and environment variables. No code runs here."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Emitter:
    """One library in one configuration. `packages` are the newest if no version is given; `needs` are not part of the emitter."""

    script: str
    packages: tuple[str, ...]
    needs: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ("plain", "break", "cut")
    environ: dict[str, str] = field(default_factory=dict)
    protocol: str = "http/protobuf"

    @property
    def language(self) -> str:
        """The language by the script's name."""
        return {"py": "python", "mjs": "javascript", "go": "go"}[self.script.rsplit(".", 1)[1]]


SDK = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
ONCE = ("plain",)
HAND = ("plain", "break", "cut", "long")
TOOLS = ("plain", "break", "cut", "tools")

LANGFUSE = {
    "LANGFUSE_HOST": "{sink}",
    "LANGFUSE_BASE_URL": "{sink}",
    "LANGFUSE_PUBLIC_KEY": "pk-lf-1",
    "LANGFUSE_SECRET_KEY": "sk-lf-1",
}
# The prices of models come from the package, not from the network.
LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}

EMITTERS: dict[str, Emitter] = {
    "python-openllmetry-openai": Emitter(
        "python_openllmetry_openai.py",
        ("opentelemetry-instrumentation-openai", "openai"),
        SDK,
        ("plain", "break", "cut", "long", "tools"),
    ),
    "python-traceloop-sdk": Emitter("python_traceloop_sdk.py", ("traceloop-sdk", "openai"), (*SDK, "httpx"), ONCE),
    "python-openinference-openai": Emitter(
        "python_openinference_openai.py", ("openinference-instrumentation-openai", "openai"), SDK, TOOLS
    ),
    "python-otel-genai-openai": Emitter(
        "python_otel_genai_openai.py", ("opentelemetry-instrumentation-genai-openai", "openai"), SDK, TOOLS
    ),
    "python-otel-openai-v2": Emitter(
        "python_otel_openai_v2.py",
        ("opentelemetry-instrumentation-openai-v2", "openai<3", "opentelemetry-util-genai<1"),
        SDK,
        ("plain", "break", "cut"),
    ),
    "python-anthropic-sdk": Emitter("python_anthropic_sdk.py", ("anthropic",), SDK, TOOLS),
    "python-openllmetry-anthropic": Emitter(
        "python_openllmetry_anthropic.py", ("opentelemetry-instrumentation-anthropic", "anthropic"), SDK
    ),
    "python-openlit": Emitter("python_openlit.py", ("openlit", "openai"), SDK),
    "python-langfuse": Emitter(
        "python_langfuse.py",
        ("langfuse", "openai"),
        environ={
            "LANGFUSE_HOST": "{sink}",
            "LANGFUSE_BASE_URL": "{sink}",
            "LANGFUSE_PUBLIC_KEY": "pk-lf-1",
            "LANGFUSE_SECRET_KEY": "sk-lf-1",
        },
    ),
    "python-logfire": Emitter("python_logfire.py", ("logfire", "openai"), SDK, ("plain", "nested", "break", "cut")),
    "python-pydantic-ai": Emitter("python_pydantic_ai.py", ("pydantic-ai-slim[openai]",), SDK, TOOLS),
    "python-pydantic-ai-logfire": Emitter("python_pydantic_ai.py", ("pydantic-ai-slim[openai]", "logfire"), SDK, ONCE),
    "python-openinference-langchain": Emitter(
        "python_openinference_langchain.py", ("openinference-instrumentation-langchain", "langchain-openai"), SDK
    ),
    "python-openllmetry-langchain": Emitter(
        "python_openllmetry_langchain.py", ("opentelemetry-instrumentation-langchain", "langchain-openai"), SDK
    ),
    "python-by-hand": Emitter("python_by_hand.py", SDK, ("httpx",), HAND),
    "python-by-hand-grpc": Emitter(
        "python_by_hand.py", ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc"), ("httpx",), ONCE, protocol="grpc"
    ),
    "python-by-hand-json": Emitter(
        "python_by_hand.py",
        ("opentelemetry-sdk", "opentelemetry-exporter-otlp-json-http==0.66b1"),
        ("httpx",),
        ONCE,
        protocol="http/json",
    ),
    "python-litellm-classic": Emitter("python_litellm.py", ("litellm==1.106.2",), SDK, environ=LITELLM),
    "python-litellm-v2": Emitter("python_litellm.py", ("litellm==1.106.2",), SDK, environ={**LITELLM, "LITELLM_OTEL_V2": "true"}),
}
