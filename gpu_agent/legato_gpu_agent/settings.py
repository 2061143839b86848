"""The agent's settings: one frozen dataclass, read from the environment once.

One idea: every field has a default, a unit in its name and an environment variable named here. It validates, and opens nothing.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from legato_gpu_agent.identity import socket_path

__all__ = ["Settings", "SettingsError"]


class SettingsError(ValueError):
    """A setting that cannot be used."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set. ``from_env`` reads LEGATO_* variables and says which one is wrong, and how."""

    socket: pathlib.Path
    """LEGATO_ENGINE_SOCKET: where the plugins send and the agent listens. Default: legato/engine.sock in the user's runtime folder."""
    endpoint: str = "http://127.0.0.1:4318"
    """LEGATO_ENDPOINT: base URL of the OTLP/HTTP receiver that steps are sent to."""
    token: str = field(default="", repr=False)
    """LEGATO_TOKEN: what the receiver knows this node by; none where it wants none."""
    flush_ms: int = 1_000
    """LEGATO_ENGINE_FLUSH_MS: how often an engine's steps are sent."""
    metrics_port: int = 0
    """LEGATO_AGENT_METRICS_PORT: loopback port of the agent's own metrics, for Prometheus. 0: none."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """The settings in these variables. Raises ``SettingsError``."""
        return cls(
            socket=_socket(environ),
            endpoint=_url(environ, "LEGATO_ENDPOINT", "http://127.0.0.1:4318"),
            token=_token(environ, "LEGATO_TOKEN"),
            flush_ms=_whole(environ, "LEGATO_ENGINE_FLUSH_MS", 1_000, 10, 600_000),
            metrics_port=_whole(environ, "LEGATO_AGENT_METRICS_PORT", 0, 0, 65_535),
        )


def _socket(environ: Mapping[str, str]) -> pathlib.Path:
    path = socket_path(environ)
    if not path.is_absolute() or len(str(path).encode()) > 107:
        raise SettingsError(f"LEGATO_ENGINE_SOCKET is {str(path)!r}: expected an absolute path of at most 107 bytes")
    return path


def _url(environ: Mapping[str, str], key: str, default: str) -> str:
    value = environ.get(key) or default
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise SettingsError(f"{key} has value {value!r}: expected a URL like {default}")
    return value.rstrip("/")


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
