"""Legato's SDK: records what a streamed LLM response felt like, and sends it as one OpenTelemetry span a stream.

>>> import legato
>>> legato.configure()             # export to `legato serve`; or use the provider that the application has
>>> legato.instrument_openai()     # every stream of the openai package is recorded from here on
"""

from legato._context import context
from legato._errors import ConfigurationError
from legato._openai import instrument_openai, uninstrument_openai
from legato._otlp import configure
from legato._recorder import StreamRecorder
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
    "configure",
    "context",
    "flush",
    "instrument_openai",
    "stats",
    "stream",
    "uninstrument_openai",
    "wrap",
]
