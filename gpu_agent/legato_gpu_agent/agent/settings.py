"""The agent's settings: one frozen dataclass, read from the environment once.

One idea: every field has a default, a unit in its name and an environment variable named here. It validates, and opens nothing.
"""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from legato_gpu_agent.plugin.identity import engine_id_of, pipe_path

__all__ = ["Settings", "SettingsError"]


class SettingsError(ValueError):
    """A setting that cannot be used."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set. ``from_env`` reads LEGATO_* variables and says which one is wrong, and how."""

    pipe: pathlib.Path
    """LEGATO_ENGINE_PIPE: where the plugins send and the agent listens. Default: legato/engine.pipe in the user's runtime folder."""
    endpoint: str = "http://127.0.0.1:4318"
    """LEGATO_ENDPOINT: base URL of the OTLP/HTTP receiver that steps are sent to."""
    token: str = field(default="", repr=False)
    """LEGATO_TOKEN: what the receiver knows this node by; none where it wants none."""
    flush_ms: int = 1_000
    """LEGATO_ENGINE_FLUSH_MS: how often an engine's steps are sent."""
    metrics_port: int = 0
    """LEGATO_AGENT_METRICS_PORT: loopback port of the agent's own metrics, for Prometheus. 0: none."""
    engines: tuple[tuple[str, str], ...] = ()
    """LEGATO_ENGINES: engines whose pages are read, ``ID=URL`` or ``URL``, with commas between; the id is host:port unless given.
    No two have one id, here as below."""
    engine_scan: bool = True
    """LEGATO_ENGINE_SCAN: also look for engines' pages at ports of this host that engines listen at. 0: no."""
    sample_ms: int = 1_000
    """LEGATO_SAMPLE_MS: how often pages and GPUs are read; 100 for ten times a second. The host: once a second at most."""
    forward_passes: tuple[tuple[str, str], ...] = ()
    """LEGATO_FORWARD_PASSES: ``ID=ENDPOINT`` of engines that publish a message a forward pass over ZMQ (SGLang, Dynamo)."""
    iterations: tuple[tuple[str, str], ...] = ()
    """LEGATO_ITERATIONS: ``ID=URL`` of servers whose JSON tells every iteration and request, and forgets what was read (TensorRT-LLM)."""
    kv_events: tuple[tuple[str, str], ...] = ()
    """LEGATO_KV_EVENTS: ``ID=ENDPOINT`` of engines that publish events of their KV cache over ZMQ (vLLM, SGLang)."""
    request_files: tuple[tuple[str, str], ...] = ()
    """LEGATO_REQUEST_FILES: ``ID=FOLDER`` of engines that write a line a request into files there (SGLang)."""
    proc: pathlib.Path = pathlib.Path("/proc")
    """LEGATO_PROC_PATH: where the host's /proc is, for a container that has it elsewhere."""
    host: str = ""
    """LEGATO_HOST_NAME: what this node is called. Default: its hostname."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """The settings in these variables. Raises ``SettingsError``."""
        return cls(
            pipe=_pipe(environ),
            endpoint=_url(environ, "LEGATO_ENDPOINT", "http://127.0.0.1:4318"),
            token=_token(environ, "LEGATO_TOKEN"),
            flush_ms=_whole(environ, "LEGATO_ENGINE_FLUSH_MS", 1_000, 10, 600_000),
            metrics_port=_whole(environ, "LEGATO_AGENT_METRICS_PORT", 0, 0, 65_535),
            engines=_engines(environ, "LEGATO_ENGINES"),
            engine_scan=_whole(environ, "LEGATO_ENGINE_SCAN", 1, 0, 1) == 1,
            sample_ms=_whole(environ, "LEGATO_SAMPLE_MS", 1_000, 100, 60_000),
            forward_passes=_named(environ, "LEGATO_FORWARD_PASSES", "ID=tcp://127.0.0.1:20380"),
            iterations=_engines(environ, "LEGATO_ITERATIONS"),
            kv_events=_named(environ, "LEGATO_KV_EVENTS", "ID=tcp://127.0.0.1:5557"),
            request_files=_named(environ, "LEGATO_REQUEST_FILES", "ID=/var/log/sglang"),
            proc=pathlib.Path(environ.get("LEGATO_PROC_PATH") or "/proc"),
            host=environ.get("LEGATO_HOST_NAME") or socket.gethostname(),
        )


def _pipe(environ: Mapping[str, str]) -> pathlib.Path:
    path = pipe_path(environ)
    if not path.is_absolute():
        raise SettingsError(f"LEGATO_ENGINE_PIPE is {str(path)!r}: expected an absolute path")
    return path


def _url(environ: Mapping[str, str], key: str, default: str) -> str:
    value = environ.get(key) or default
    if not _is_url(value):
        raise SettingsError(f"{key} has value {value!r}: expected a URL like {default}")
    return value.rstrip("/")


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _named(environ: Mapping[str, str], key: str, example: str) -> tuple[tuple[str, str], ...]:
    """``NAME=VALUE`` with commas between."""
    out = []
    for part in filter(None, (part.strip() for part in environ.get(key, "").split(","))):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise SettingsError(f"{key} has {part!r}: expected {example}, with commas between several")
        out.append((name, value))
    return _distinct(key, out)


def _engines(environ: Mapping[str, str], key: str) -> tuple[tuple[str, str], ...]:
    """``ID=URL`` or ``URL``: an id has no slash before its equals sign."""
    out = []
    for part in filter(None, (part.strip() for part in environ.get(key, "").split(","))):
        name, equals, url = part.partition("=")
        if not equals or "://" in name:
            name, url = "", part
        if not _is_url(url) or (equals and not name and url != part):
            raise SettingsError(
                f"{key} has {part!r}: expected http://127.0.0.1:8000 or ID=http://127.0.0.1:8000, with commas between several"
            )
        out.append((name, url.rstrip("/")))
    return _distinct(key, out)


def _distinct(key: str, named: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """All of them, if no two have one id: of those all but one would be left out, and nobody would hear of it."""
    seen: dict[str, str] = {}
    for name, value in named:
        own = name or engine_id_of(value)
        if own in seen:
            raise SettingsError(
                f"{key} has the id {own!r} twice, for {seen[own]} and {value}: give each an id of its own, as in ID={value}"
            )
        seen[own] = value
    return tuple(named)


def _token(environ: Mapping[str, str], key: str) -> str:
    value = environ.get(key, "")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise SettingsError(f"{key} holds what no token has: expected printable ASCII without blanks, as `legato token add` prints it")
    return value


def _whole(environ: Mapping[str, str], key: str, default: int, least: int, most: int) -> int:
    value = environ.get(key) or str(default)
    if not value.isdecimal() or not least <= int(value) <= most:
        raise SettingsError(f"{key} has value {value!r}: expected a whole number from {least} to {most}")
    return int(value)
