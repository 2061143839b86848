"""The SDK's settings: one frozen dataclass, read from LEGATO_* environment variables.

Every field has a default, and its docstring names its variable. No other module of the SDK reads LEGATO_* variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from legato._errors import ConfigurationError

__all__ = ["Settings"]

_Value = TypeVar("_Value")
_ENDPOINT = "http://127.0.0.1:4318"
# So many days that nothing overflows.
_DIGITS_MAX = 15
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings and their defaults. ``from_env`` reads them and reports an invalid variable by name, with the expected form."""

    endpoint: str = _ENDPOINT
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
    def from_env(cls, environ: Mapping[str, str], invalid: Callable[[ConfigurationError], None] | None = None) -> Settings:
        """Return the settings in these variables. Raises ``ConfigurationError`` if one is invalid, unless Legato is disabled.

        If ``invalid`` is given, it gets the errors, and nothing is raised: an invalid variable has its default.
        """
        disabled = False

        def read(how: Callable[[Mapping[str, str], str, _Value], _Value], key: str, default: _Value) -> _Value:
            try:
                return how(environ, key, default)
            except ConfigurationError as error:
                if not disabled and invalid is None:
                    raise
                if not disabled and invalid is not None:
                    invalid(error)
                return default

        disabled = read(_boolean, "LEGATO_DISABLED", False)
        return cls(
            endpoint=read(_url, "LEGATO_ENDPOINT", _ENDPOINT),
            endpoint_given=bool(environ.get("LEGATO_ENDPOINT")),
            token=read(_token, "LEGATO_TOKEN", ""),
            snapshot_interval_ms=read(_milliseconds, "LEGATO_SNAPSHOT_INTERVAL_MS", 10_000),
            export_interval_ms=read(_milliseconds, "LEGATO_EXPORT_INTERVAL_MS", 1_000),
            engine_id=environ.get("LEGATO_ENGINE_ID", ""),
            client_hash_key=environ.get("LEGATO_CLIENT_HASH_KEY", ""),
            disabled=disabled,
            program=environ.get("LEGATO_RUN", ""),
        )


def _url(environ: Mapping[str, str], key: str, default: str) -> str:
    value = environ.get(key) or default
    if not value.startswith(("http://", "https://")):
        raise ConfigurationError(f"{key} has value {value!r}: expected a URL such as http://127.0.0.1:4318")
    return value.rstrip("/")


def _token(environ: Mapping[str, str], key: str, default: str) -> str:
    value = environ.get(key, default)
    if not value.isascii() or not value.isprintable() or " " in value:
        # The value is a secret, so the message does not quote it.
        raise ConfigurationError(f"{key} is no valid token: expected printable ASCII without spaces, as `legato token add` prints it")
    return value


def _milliseconds(environ: Mapping[str, str], key: str, default: int) -> int:
    value = environ.get(key) or str(default)
    if not value.isdecimal() or len(value) > _DIGITS_MAX:
        raise ConfigurationError(f"{key} has value {value!r}: expected a whole number of milliseconds")
    return int(value)


def _boolean(environ: Mapping[str, str], key: str, default: bool) -> bool:
    value = environ.get(key, str(default)).lower()
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    raise ConfigurationError(f"{key} has value {value!r}: expected true or false")
