"""The SDK's settings: one frozen dataclass, read from LEGATO_* environment variables.

Every field has a default, and its docstring names its variable. No other module of the SDK reads LEGATO_* variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from legato._errors import ConfigurationError

__all__ = ["Settings"]

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings and their defaults. ``from_env`` reads them and reports an invalid variable by name, with the expected form."""

    endpoint: str = "http://127.0.0.1:4318"
    """LEGATO_ENDPOINT: base URL of the OTLP/HTTP endpoint that ``configure()`` exports to."""
    endpoint_given: bool = False
    """Whether LEGATO_ENDPOINT was set. If so, `StreamMiddleware` calls ``configure()`` itself."""
    token: str = field(default="", repr=False)
    """LEGATO_TOKEN: bearer token that ``configure()`` sends with every export, for endpoints that require one."""
    snapshot_interval_ms: int = 10_000
    """LEGATO_SNAPSHOT_INTERVAL_MS: age of a stream at its first snapshot; later ones follow at 3, 9, … times that age. 0: no snapshots."""
    export_interval_ms: int = 1_000
    """LEGATO_EXPORT_INTERVAL_MS: shortest time between two exports of ``configure()``, and longest time that an ended span waits."""
    engine_id: str = ""
    """LEGATO_ENGINE_ID: id of the serving engine; use the same one for its middleware, plugin and agent. Default: host:port."""
    client_hash_key: str = field(default="", repr=False)
    """LEGATO_CLIENT_HASH_KEY: secret key for hashing client names. Without a key no hash is sent."""
    disabled: bool = False
    """LEGATO_DISABLED: record nothing."""
    program: str = ""
    """LEGATO_RUN: set by `legato run`: the program's name, which is the service's if nothing else names it."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Return the settings in these variables. Raises ``ConfigurationError`` if one is invalid."""
        return cls(
            endpoint=_url(environ, "LEGATO_ENDPOINT"),
            endpoint_given=bool(environ.get("LEGATO_ENDPOINT")),
            token=_token(environ, "LEGATO_TOKEN"),
            snapshot_interval_ms=_milliseconds(environ, "LEGATO_SNAPSHOT_INTERVAL_MS", 10_000),
            export_interval_ms=_milliseconds(environ, "LEGATO_EXPORT_INTERVAL_MS", 1_000),
            engine_id=environ.get("LEGATO_ENGINE_ID", ""),
            client_hash_key=environ.get("LEGATO_CLIENT_HASH_KEY", ""),
            disabled=_boolean(environ, "LEGATO_DISABLED"),
            program=environ.get("LEGATO_RUN", ""),
        )


def _url(environ: Mapping[str, str], key: str) -> str:
    value = environ.get(key) or "http://127.0.0.1:4318"
    if not value.startswith(("http://", "https://")):
        raise ConfigurationError(f"{key} has value {value!r}: expected a URL such as http://127.0.0.1:4318")
    return value.rstrip("/")


def _token(environ: Mapping[str, str], key: str) -> str:
    value = environ.get(key, "")
    if not value.isascii() or not value.isprintable() or " " in value:
        # The value is a secret, so the message does not quote it.
        raise ConfigurationError(f"{key} is no valid token: expected printable ASCII without spaces, as `legato token add` prints it")
    return value


def _milliseconds(environ: Mapping[str, str], key: str, default: int) -> int:
    value = environ.get(key) or str(default)
    if not value.isdecimal():
        raise ConfigurationError(f"{key} has value {value!r}: expected a whole number of milliseconds")
    return int(value)


def _boolean(environ: Mapping[str, str], key: str) -> bool:
    value = environ.get(key, "").lower()
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    raise ConfigurationError(f"{key} has value {value!r}: expected true or false")
