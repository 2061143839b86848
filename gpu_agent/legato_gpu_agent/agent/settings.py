"""The agent's settings: one frozen dataclass, read once from the environment.

Each field has a default, a unit in its name where it has one, and its environment variable in its description. The module validates the
values and opens nothing.
"""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from legato_gpu_agent.plugin.identity import engine_id_from_url, pipe_path

__all__ = ["Settings", "SettingsError"]


_SIGNAL_PATHS = ("/v1/traces", "/v1/metrics", "/v1/logs")


class SettingsError(ValueError):
    """A setting with an invalid value, or one that does not work on this host."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings. ``from_env`` reads them from LEGATO_* variables; its errors name the variable, the value and what is expected."""

    pipe: pathlib.Path
    """LEGATO_ENGINE_PIPE: pipe from the plugins to the agent. The default is in a folder of the user: see ``identity.pipe_path``."""
    endpoint: str = "http://127.0.0.1:4318"
    """LEGATO_ENDPOINT: base URL of the OTLP/HTTP receiver."""
    token: str = field(default="", repr=False)
    """LEGATO_TOKEN: this node's token for the receiver. Empty: the receiver requires none."""
    flush_ms: int = 1_000
    """LEGATO_ENGINE_FLUSH_MS: interval at which steps and measurements are sent."""
    metrics_port: int = 0
    """LEGATO_AGENT_METRICS_PORT: loopback port of the agent's own metrics, for Prometheus. 0: no port."""
    engines: tuple[tuple[str, str], ...] = ()
    """LEGATO_ENGINES: scrape targets, ``ID=URL`` or ``URL``, separated by commas. The default id is host:port. Ids are unique."""
    engine_scan: bool = True
    """LEGATO_ENGINE_SCAN: also probe listening ports of this host that engines use by default. 0: no."""
    sample_ms: int = 1_000
    """LEGATO_SAMPLE_MS: interval at which engines and GPUs are read; 100 is ten times a second. The host is read at most once a second."""
    forward_passes: tuple[tuple[str, str], ...] = ()
    """LEGATO_FORWARD_PASSES: ``ID=ENDPOINT`` of engines that publish each forward pass over ZMQ (SGLang, Dynamo)."""
    iterations: tuple[tuple[str, str], ...] = ()
    """LEGATO_ITERATIONS: ``ID=URL`` or ``URL`` of TensorRT-LLM servers with each iteration and request as JSON, which a read removes."""
    kv_events: tuple[tuple[str, str], ...] = ()
    """LEGATO_KV_EVENTS: ``ID=ENDPOINT`` of engines that publish events of their KV cache over ZMQ (vLLM, SGLang)."""
    request_files: tuple[tuple[str, str], ...] = ()
    """LEGATO_REQUEST_FILES: ``ID=FOLDER`` of engines that write one line per request into files there (SGLang)."""
    proc: pathlib.Path = pathlib.Path("/proc")
    """LEGATO_PROC_PATH: path of the host's /proc, for a container that mounts it elsewhere."""
    host: str = ""
    """LEGATO_HOST_NAME: name of this node. Default: its hostname."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Return the settings in these variables. Raises ``SettingsError``."""
        return cls(
            pipe=_pipe(environ),
            endpoint=_endpoint(environ, "LEGATO_ENDPOINT", "http://127.0.0.1:4318"),
            token=_token(environ, "LEGATO_TOKEN"),
            flush_ms=_whole(environ, "LEGATO_ENGINE_FLUSH_MS", 1_000, 10, 600_000),
            metrics_port=_whole(environ, "LEGATO_AGENT_METRICS_PORT", 0, 0, 65_535),
            engines=_engines(environ, "LEGATO_ENGINES"),
            engine_scan=_whole(environ, "LEGATO_ENGINE_SCAN", 1, 0, 1) == 1,
            sample_ms=_whole(environ, "LEGATO_SAMPLE_MS", 1_000, 100, 60_000),
            forward_passes=_named(environ, "LEGATO_FORWARD_PASSES", "ID=ipc:///run/sglang/fpm.0 or ID=tcp://127.0.0.1:20380"),
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


def _endpoint(environ: Mapping[str, str], key: str, default: str) -> str:
    value = (environ.get(key) or default).rstrip("/")
    if _has_credentials(value):
        raise SettingsError(f"{key} has a URL with a user or a password, which the agent does not send: remove them, and set LEGATO_TOKEN")
    if not _is_url(value):
        raise SettingsError(f"{key} has value {value!r}: expected a URL like {default}")
    if value.endswith(_SIGNAL_PATHS):
        base = value.rpartition("/v1/")[0]
        raise SettingsError(f"{key} has value {value!r}: expected the base URL {base}, to which the agent adds the path of each signal")
    return value


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _has_credentials(url: str) -> bool:
    """Return whether a URL has a user or a password; one that is not valid may have them at any place."""
    rest = url.partition("://")[2]
    return "@" in rest.partition("/")[0] or ("@" in rest and not _is_url(url))


def _named(environ: Mapping[str, str], key: str, example: str) -> tuple[tuple[str, str], ...]:
    """Parse ``NAME=VALUE`` items, separated by commas."""
    out = []
    for part in _items(environ, key):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise SettingsError(f"{key} has {part!r}: expected {example}, several separated by commas")
        out.append((name, value))
    return _unique(key, out)


def _engines(environ: Mapping[str, str], key: str) -> tuple[tuple[str, str], ...]:
    """Parse ``ID=URL`` or ``URL`` items. An equals sign after ``://`` belongs to the URL."""
    out = []
    for part in _items(environ, key):
        name, equals, url = part.partition("=")
        if not equals or "://" in name:
            name, url = "", part
        if _has_credentials(url):
            # They are secrets, so the message does not quote them.
            raise SettingsError(
                f"{key} has a URL with a user or a password, which the agent does not send: remove them, and let the engine answer without"
            )
        if not _is_url(url) or (equals and not name and url != part):
            raise SettingsError(
                f"{key} has {part!r}: expected http://127.0.0.1:8000 or ID=http://127.0.0.1:8000, several separated by commas"
            )
        out.append((name, url.rstrip("/")))
    return _unique(key, out)


def _items(environ: Mapping[str, str], key: str) -> list[str]:
    return [item for part in environ.get(key, "").split(",") if (item := part.strip())]


def _unique(key: str, named: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the items. Raises ``SettingsError`` for a repeated id: only one of its targets would be read, without any message."""
    seen: dict[str, str] = {}
    for name, value in named:
        engine_id = name or engine_id_from_url(value)
        if engine_id in seen:
            raise SettingsError(
                f"{key} has the id {engine_id!r} twice, for {seen[engine_id]} and {value}: give each a separate id, as in ID={value}"
            )
        seen[engine_id] = value
    return tuple(named)


def _token(environ: Mapping[str, str], key: str) -> str:
    value = environ.get(key, "")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise SettingsError(f"{key} is not a valid token: expected printable ASCII without spaces, as `legato token add` prints it")
    return value


def _whole(environ: Mapping[str, str], key: str, default: int, least: int, most: int) -> int:
    value = environ.get(key) or str(default)
    if not value.isdecimal() or not least <= int(value) <= most:
        raise SettingsError(f"{key} has value {value!r}: expected a whole number from {least} to {most}")
    return int(value)
