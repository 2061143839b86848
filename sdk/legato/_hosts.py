"""Names of providers by the host of their API, as the GenAI semantic conventions write them."""

from __future__ import annotations

__all__ = ["provider_at"]

_HOSTS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.x.ai": "x_ai",
    "api.cohere.com": "cohere",
    "api.perplexity.ai": "perplexity",
    "openrouter.ai": "openrouter",
    "api.together.xyz": "together_ai",
}
_SUFFIXES = {
    ".openai.azure.com": "azure.ai.openai",
    ".services.ai.azure.com": "azure.ai.inference",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    ".openai.com": "openai",
}


def provider_at(host: str) -> str:
    """Return the provider at a host; an empty string for an unknown host."""
    if found := _HOSTS.get(host):
        return found
    if host.startswith("bedrock-runtime.") and host.endswith(".amazonaws.com"):
        return "aws.bedrock"
    return next((provider for suffix, provider in _SUFFIXES.items() if host.endswith(suffix)), "")
