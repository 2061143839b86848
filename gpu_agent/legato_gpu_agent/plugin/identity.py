"""Rules that the plugins and the agent must share: the path of the pipe, and the id of an engine.

Both are functions of the environment and the command line, so that two processes with the same settings agree without communication. The
module uses the standard library only; it reads nothing but its arguments and creates no folder.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

__all__ = ["LOOPBACK", "client_host", "engine_id", "engine_id_from_url", "host_and_port", "pipe_path", "server_id"]

ENGINE_ID = "LEGATO_ENGINE_ID"
LOOPBACK = "127.0.0.1"
"""The one name that engine ids use for this host."""
_LOOPBACK_NAMES = frozenset((LOOPBACK, "localhost", "0.0.0.0", "::", "[::]", "::1", "[::1]"))


def pipe_path(environ: Mapping[str, str]) -> pathlib.Path:
    """Return LEGATO_ENGINE_PIPE; without it ``legato/engine.pipe`` in XDG_RUNTIME_DIR, or ``/tmp/legato-UID/engine.pipe``."""
    setting = environ.get("LEGATO_ENGINE_PIPE")
    if setting:
        return pathlib.Path(setting)
    runtime = environ.get("XDG_RUNTIME_DIR")
    folder = pathlib.Path(runtime) / "legato" if runtime else pathlib.Path("/tmp") / f"legato-{os.getuid()}"
    return folder / "engine.pipe"


def client_host(host: str) -> str:
    """Return the address that a client on this host uses for ``host``: wildcard and loopback names become 127.0.0.1."""
    return LOOPBACK if host.lower() in _LOOPBACK_NAMES else host


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL; a URL without a port has the default port of its scheme."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def engine_id_from_url(url: str) -> str:
    """Return the default id of the engine at this URL, ``host:port``; the plugin and the middleware derive the same id."""
    host, port = host_and_port(url)
    return f"{client_host(host)}:{port}"


def server_id(engine_id: str) -> str:
    """Return the id of the server behind which this engine runs: ``id/1``, ``id/2``, … are ranks of the server ``id``."""
    server, slash, rank = engine_id.rpartition("/")
    return server if slash and rank.isdecimal() else engine_id


def engine_id(environ: Mapping[str, str], arguments: Sequence[str], index: int = 0) -> str:
    """Return LEGATO_ENGINE_ID, or else the host and port of the server as a client on this host reaches it.

    ``arguments`` is the server's command line. ``index`` numbers the engines behind one server: the first has the plain id, the others
    have ``id/1``, ``id/2``, …
    """
    name = environ.get(ENGINE_ID) or _address(arguments)
    return f"{name}/{index}" if index > 0 else name


def _address(arguments: Sequence[str]) -> str:
    host = _option(arguments, "--host") or LOOPBACK
    return f"{client_host(host)}:{_option(arguments, '--port') or '8000'}"


def _option(arguments: Sequence[str], name: str) -> str:
    """Return the last value of an option, given as ``--name value`` or ``--name=value``; '' without one."""
    value = ""
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            value = argument[len(name) + 1 :]
        elif argument == name and place + 1 < len(arguments):
            value = arguments[place + 1]
    return value
