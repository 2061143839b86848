"""Legato's SDK. It records when each chunk of a streamed LLM response arrived, and sends one OpenTelemetry span per stream.

>>> import legato
>>> legato.configure()             # export to `legato serve`; not needed if the application's tracer provider exports already
>>> legato.instrument()            # record every stream of openai, anthropic, google-genai, ollama and httpx from now on
"""

from legato._aiohttp import instrument_aiohttp, uninstrument_aiohttp
from legato._context import carry, context
from legato._errors import ConfigurationError
from legato._httpx import instrument_httpx, uninstrument_httpx
from legato._instrument import instrument, uninstrument
from legato._openai import instrument_openai, uninstrument_openai
from legato._otlp import configure
from legato._recorder import StreamRecorder
from legato._requests import instrument_requests, uninstrument_requests
from legato._stream import stream
from legato._timeline import Kind
from legato._version import __version__
from legato._worker import flush, stats
from legato._wrap import wrap

__all__ = [
    "ConfigurationError",
    "Kind",
    "StreamRecorder",
    "__version__",
    "carry",
    "configure",
    "context",
    "flush",
    "instrument",
    "instrument_aiohttp",
    "instrument_httpx",
    "instrument_openai",
    "instrument_requests",
    "stats",
    "stream",
    "uninstrument",
    "uninstrument_aiohttp",
    "uninstrument_httpx",
    "uninstrument_openai",
    "uninstrument_requests",
    "wrap",
]
