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
NODE = (
    "@opentelemetry/api",
    "@opentelemetry/resources",
    "@opentelemetry/sdk-trace-node",
    "@opentelemetry/exporter-trace-otlp-http",
    "@opentelemetry/exporter-trace-otlp-proto",
)
GO = (
    "go.opentelemetry.io/otel",
    "go.opentelemetry.io/otel/sdk",
    "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp",
    "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc",
)
ONCE = ("plain",)
HAND = ("plain", "break", "cut", "long")
TOOLS = ("plain", "break", "cut", "tools")
WITH_RESPONSES = ("plain", "break", "cut", "responses")
ALL = (*TOOLS, "responses")

LANGFUSE = {
    "LANGFUSE_HOST": "{sink}",
    "LANGFUSE_BASE_URL": "{sink}",
    "LANGFUSE_PUBLIC_KEY": "pk-lf-1",
    "LANGFUSE_SECRET_KEY": "sk-lf-1",
}
LANGSMITH = {
    "LANGSMITH_OTEL_ENABLED": "true",
    "LANGSMITH_OTEL_ONLY": "true",
    "LANGSMITH_TRACING": "true",
    "LANGSMITH_API_KEY": "none",
}
# The prices of models come from the package, not from the network.
LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}

MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "{sink}/v1/traces",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
}

GEMINI = {"GOOGLE_GEMINI_BASE_URL": "{llm}", "GEMINI_API_KEY": "none"}

EMITTERS: dict[str, Emitter] = {
    "python-openllmetry-openai": Emitter(
        "python_openllmetry_openai.py",
        ("opentelemetry-instrumentation-openai", "openai"),
        SDK,
        ("plain", "break", "cut", "long", "tools", "responses", "concurrent"),
    ),
    # The attributes and the event names of before its semantic conventions 0.5.
    "python-openllmetry-openai-old": Emitter(
        "python_openllmetry_openai.py",
        ("opentelemetry-instrumentation-openai==0.40.14", "openai<2", "opentelemetry-semantic-conventions-ai<0.5"),
        SDK,
        HAND,
    ),
    "python-openllmetry-ollama": Emitter(
        "python_openllmetry_ollama.py",
        ("opentelemetry-instrumentation-ollama", "ollama"),
        SDK,
        environ={"OLLAMA_HOST": "{llm}"},
    ),
    "python-openinference-anthropic": Emitter(
        "python_openinference_anthropic.py", ("openinference-instrumentation-anthropic", "anthropic"), SDK
    ),
    "python-otel-genai-anthropic": Emitter(
        "python_otel_genai_anthropic.py", ("opentelemetry-instrumentation-genai-anthropic", "anthropic"), SDK
    ),
    "python-otel-genai-langchain": Emitter(
        "python_otel_genai_langchain.py", ("opentelemetry-instrumentation-genai-langchain", "langchain-openai", "langchain"), SDK
    ),
    "python-openinference-litellm": Emitter(
        "python_openinference_litellm.py", ("openinference-instrumentation-litellm", "litellm==1.106.2"), SDK, environ=LITELLM
    ),
    "python-mlflow": Emitter(
        "python_mlflow.py",
        ("mlflow", "openai"),
        SDK,
        ("plain", "break", "cut", "long", "tools", "responses"),
        MLFLOW,
    ),
    "python-strands": Emitter("python_strands.py", ("strands-agents[openai,otel]",), SDK),
    "python-openai-agents-openinference": Emitter(
        "python_openai_agents.py", ("openinference-instrumentation-openai-agents", "openai-agents"), SDK
    ),
    "python-openai-agents-genai": Emitter(
        "python_openai_agents.py", ("opentelemetry-instrumentation-genai-openai-agents", "openai-agents"), SDK
    ),
    "python-otel-google-genai": Emitter(
        "python_google_genai.py", ("opentelemetry-instrumentation-google-genai", "google-genai<3"), SDK, environ=GEMINI
    ),
    "python-openinference-google-genai": Emitter(
        "python_google_genai.py", ("openinference-instrumentation-google-genai", "google-genai"), SDK, environ=GEMINI
    ),
    "python-openllmetry-google-genai": Emitter(
        "python_google_genai.py", ("opentelemetry-instrumentation-google-generativeai", "google-genai"), SDK, environ=GEMINI
    ),
    "python-traceloop-sdk": Emitter("python_traceloop_sdk.py", ("traceloop-sdk", "openai"), (*SDK, "httpx"), ONCE),
    "python-openinference-openai": Emitter("python_openinference_openai.py", ("openinference-instrumentation-openai", "openai"), SDK, ALL),
    "python-otel-genai-openai": Emitter("python_otel_genai_openai.py", ("opentelemetry-instrumentation-genai-openai", "openai"), SDK, ALL),
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
    "python-openlit": Emitter("python_openlit.py", ("openlit", "openai"), SDK, WITH_RESPONSES),
    "python-langfuse": Emitter(
        "python_langfuse.py",
        ("langfuse", "openai"),
        (),
        WITH_RESPONSES,
        environ={
            "LANGFUSE_HOST": "{sink}",
            "LANGFUSE_BASE_URL": "{sink}",
            "LANGFUSE_PUBLIC_KEY": "pk-lf-1",
            "LANGFUSE_SECRET_KEY": "sk-lf-1",
        },
    ),
    "python-logfire": Emitter("python_logfire.py", ("logfire", "openai"), SDK, (*WITH_RESPONSES, "nested", "concurrent")),
    "python-pydantic-ai": Emitter("python_pydantic_ai.py", ("pydantic-ai-slim[openai]",), SDK, TOOLS),
    "python-pydantic-ai-logfire": Emitter("python_pydantic_ai.py", ("pydantic-ai-slim[openai]", "logfire"), SDK, ONCE),
    "python-openinference-llama-index": Emitter(
        "python_llama_index.py", ("openinference-instrumentation-llama-index", "llama-index-llms-openai"), SDK
    ),
    "python-openllmetry-llama-index": Emitter(
        "python_llama_index.py", ("opentelemetry-instrumentation-llamaindex", "llama-index-llms-openai"), SDK
    ),
    "python-google-adk": Emitter("python_google_adk.py", ("google-adk",), SDK, environ=GEMINI),
    "python-openinference-google-adk": Emitter(
        "python_google_adk.py", ("openinference-instrumentation-google-adk", "google-adk"), SDK, environ=GEMINI
    ),
    "python-agent-framework": Emitter("python_agent_framework.py", ("agent-framework-core", "agent-framework-openai"), SDK),
    "python-semantic-kernel": Emitter(
        "python_semantic_kernel.py",
        ("semantic-kernel",),
        SDK,
        environ={"SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS": "true"},
    ),
    "python-openinference-agno": Emitter("python_agno.py", ("openinference-instrumentation-agno", "agno", "openai"), SDK),
    "python-openllmetry-agno": Emitter("python_agno.py", ("opentelemetry-instrumentation-agno", "agno", "openai"), SDK),
    "python-openinference-smolagents": Emitter(
        "python_smolagents.py", ("openinference-instrumentation-smolagents", "smolagents[openai]"), SDK
    ),
    "python-openinference-dspy": Emitter(
        "python_dspy.py", ("openinference-instrumentation-dspy", "dspy", "litellm==1.106.2"), SDK, environ=LITELLM
    ),
    "python-openinference-haystack": Emitter("python_haystack.py", ("openinference-instrumentation-haystack", "haystack-ai"), SDK),
    "python-openinference-mistral": Emitter("python_mistral.py", ("openinference-instrumentation-mistralai", "mistralai"), SDK),
    "python-openllmetry-mistral": Emitter("python_mistral.py", ("opentelemetry-instrumentation-mistralai", "mistralai<2"), SDK),
    "python-openinference-groq": Emitter("python_groq.py", ("openinference-instrumentation-groq", "groq"), SDK),
    "python-openllmetry-groq": Emitter("python_groq.py", ("opentelemetry-instrumentation-groq", "groq"), SDK),
    "python-openinference-cohere": Emitter("python_cohere.py", ("openinference-instrumentation-cohere", "cohere"), SDK),
    "python-openllmetry-cohere": Emitter("python_cohere.py", ("opentelemetry-instrumentation-cohere", "cohere<6"), SDK),
    "python-otel-botocore": Emitter("python_bedrock.py", ("opentelemetry-instrumentation-botocore", "boto3"), SDK),
    "python-openllmetry-bedrock": Emitter("python_bedrock.py", ("opentelemetry-instrumentation-bedrock", "boto3"), SDK),
    "python-openinference-bedrock": Emitter("python_bedrock.py", ("openinference-instrumentation-bedrock", "boto3"), SDK),
    "python-langfuse-langchain": Emitter("python_langfuse_langchain.py", ("langfuse", "langchain-openai", "langchain"), environ=LANGFUSE),
    "python-langsmith": Emitter("python_langsmith.py", ("langsmith[otel]", "langchain-openai"), SDK, environ=LANGSMITH),
    "python-langsmith-openai": Emitter(
        "python_langsmith.py", ("langsmith[otel]", "langchain-openai"), SDK, environ={**LANGSMITH, "CAPTURE_WRAPPER": "1"}
    ),
    "python-openai-agents-logfire": Emitter("python_openai_agents_logfire.py", ("logfire", "openai-agents"), SDK),
    "python-openinference-crewai": Emitter("python_crewai.py", ("openinference-instrumentation-crewai", "crewai"), SDK),
    "python-openllmetry-crewai": Emitter("python_crewai.py", ("opentelemetry-instrumentation-crewai", "crewai"), SDK),
    "python-elastic-openai": Emitter("python_elastic_openai.py", ("elastic-opentelemetry-instrumentation-openai", "openai<3"), SDK),
    "python-laminar": Emitter("python_laminar.py", ("lmnr", "openai"), SDK),
    "python-langtrace": Emitter("python_langtrace.py", ("langtrace-python-sdk", "openai<2", "importlib_metadata", "setuptools<81"), SDK),
    "python-openllmetry-openai-agents": Emitter(
        "python_openai_agents.py", ("opentelemetry-instrumentation-openai-agents", "openai-agents"), SDK
    ),
    "python-openinference-pydantic-ai": Emitter(
        "python_pydantic_ai_openinference.py", ("openinference-instrumentation-pydantic-ai", "pydantic-ai-slim[openai]"), SDK
    ),
    "python-agentops": Emitter("python_agentops.py", ("agentops", "openai<2"), SDK),
    "python-langwatch": Emitter("python_langwatch.py", ("langwatch", "openai"), SDK),
    "python-azure-inference": Emitter("python_azure_inference.py", ("azure-ai-inference", "azure-core-tracing-opentelemetry"), SDK),
    "python-openlit-langchain": Emitter("python_openlit_langchain.py", ("openlit>=1.45", "langchain-openai", "langchain"), SDK),
    "python-autogen": Emitter("python_autogen.py", ("autogen-agentchat", "autogen-ext[openai]"), SDK),
    "python-openinference-ollama": Emitter(
        "python_ollama.py", ("openinference-instrumentation-ollama", "ollama"), SDK, environ={"OLLAMA_HOST": "{llm}"}
    ),
    "python-logfire-anthropic": Emitter("python_logfire_anthropic.py", ("logfire", "anthropic"), SDK),
    "python-openlit-anthropic": Emitter("python_openlit_anthropic.py", ("openlit>=1.45", "anthropic"), SDK),
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
    "python-litellm-proxy": Emitter("python_litellm_proxy.py", ("litellm[proxy]==1.106.2",), (*SDK, "openai"), environ=LITELLM),
    "python-litellm-proxy-v2": Emitter(
        "python_litellm_proxy.py", ("litellm[proxy]==1.106.2",), (*SDK, "openai"), environ={**LITELLM, "LITELLM_OTEL_V2": "true"}
    ),
    "js-ai-sdk": Emitter("js_ai_sdk.mjs", ("ai@7", "@ai-sdk/otel@1", "@ai-sdk/openai@4"), NODE, TOOLS, {"AI_TELEMETRY": "otel"}),
    "js-ai-sdk-7-legacy": Emitter(
        "js_ai_sdk.mjs", ("ai@7", "@ai-sdk/otel@1", "@ai-sdk/openai@4"), NODE, environ={"AI_TELEMETRY": "legacy"}
    ),
    "js-ai-sdk-6": Emitter("js_ai_sdk.mjs", ("ai@6", "@ai-sdk/openai@3"), NODE, environ={"AI_TELEMETRY": "experimental"}),
    "js-ai-sdk-5": Emitter("js_ai_sdk.mjs", ("ai@5", "@ai-sdk/openai@2", "zod@4"), NODE, ONCE, {"AI_TELEMETRY": "experimental"}),
    "js-ai-sdk-4": Emitter("js_ai_sdk.mjs", ("ai@4", "@ai-sdk/openai@1", "zod@3"), NODE, ONCE, {"AI_TELEMETRY": "experimental"}),
    "js-langfuse": Emitter("js_langfuse.mjs", ("@langfuse/openai", "@langfuse/otel", "openai@6"), NODE, environ=LANGFUSE),
    "js-openinference-openai": Emitter("js_openinference_openai.mjs", ("@arizeai/openinference-instrumentation-openai", "openai@6"), NODE),
    "js-traceloop-openai": Emitter("js_traceloop_openai.mjs", ("@traceloop/instrumentation-openai", "openai@6"), NODE),
    "js-otel-openai": Emitter(
        "js_otel_openai.mjs",
        ("@opentelemetry/instrumentation-openai", "openai@6", "@opentelemetry/instrumentation"),
        NODE,
    ),
    "js-openinference-langchain": Emitter(
        "js_langchain.mjs",
        ("@arizeai/openinference-instrumentation-langchain", "@langchain/openai", "@langchain/core"),
        NODE,
        environ={"CAPTURE_INSTRUMENTATION": "@arizeai/openinference-instrumentation-langchain"},
    ),
    "js-traceloop-langchain": Emitter(
        "js_langchain.mjs",
        ("@traceloop/instrumentation-langchain", "@langchain/openai", "@langchain/core"),
        NODE,
        environ={"CAPTURE_INSTRUMENTATION": "@traceloop/instrumentation-langchain"},
    ),
    "js-langfuse-langchain": Emitter(
        "js_langchain.mjs",
        ("@langfuse/langchain", "@langfuse/otel", "@langchain/openai", "@langchain/core"),
        NODE,
        environ={**LANGFUSE, "CAPTURE_INSTRUMENTATION": "@langfuse/langchain"},
    ),
    "js-mastra": Emitter("js_mastra.mjs", ("@mastra/core@1", "@mastra/observability@1", "@mastra/otel-exporter@1", "@ai-sdk/openai"), NODE),
    "js-genkit": Emitter(
        "js_genkit.mjs",
        ("genkit", "@genkit-ai/compat-oai"),
        ("@opentelemetry/sdk-trace-node@1", "@opentelemetry/exporter-trace-otlp-proto@0.52.1"),
    ),
    "js-openlit": Emitter("js_openlit.mjs", ("openlit", "openai@6"), NODE),
    "js-by-hand": Emitter("js_by_hand.mjs", NODE, ("openai",), HAND),
    "js-by-hand-json": Emitter("js_by_hand.mjs", NODE, ("openai",), HAND, protocol="http/json"),
    "go-by-hand": Emitter("go_by_hand.go", GO, (), HAND),
    "go-by-hand-grpc": Emitter("go_by_hand.go", GO, (), ONCE, protocol="grpc"),
}
