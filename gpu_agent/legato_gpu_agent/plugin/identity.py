"""What the plugins and the agent must agree on without talking: where the pipe is, and what an engine is called.

One idea: both are rules over the environment and the command line, in one place, so that two processes that share them meet. The standard
library alone; it reads nothing but what it is given, and makes no folder.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

__all__ = ["LOOPBACK", "client_host", "engine_id", "engine_id_of", "pipe_path", "place_of", "server_of"]

ENGINE_ID = "LEGATO_ENGINE_ID"
LOOPBACK = "127.0.0.1"
"""What this host is called by those who are on it."""
_EVERYWHERE = frozenset((LOOPBACK, "localhost", "0.0.0.0", "::", "[::]", "::1", "[::1]"))


def pipe_path(environ: Mapping[str, str]) -> pathlib.Path:
    """LEGATO_ENGINE_PIPE, else ``legato/engine.pipe`` in the user's runtime folder, else in a folder of the user's own in /tmp."""
    named = environ.get("LEGATO_ENGINE_PIPE")
    if named:
        return pathlib.Path(named)
    runtime = environ.get("XDG_RUNTIME_DIR")
    folder = pathlib.Path(runtime) / "legato" if runtime else pathlib.Path("/tmp") / f"legato-{os.getuid()}"
    return folder / "engine.pipe"


def client_host(host: str) -> str:
    """``host`` as a client on this host has it: loopback's many names, and addresses that stand for all, are one."""
    return LOOPBACK if host.lower() in _EVERYWHERE else host


def place_of(url: str) -> tuple[str, int]:
    """The host and the port of a URL; where it names no port, its scheme's."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def engine_id_of(url: str) -> str:
    """What an engine at this URL is called unless it is told: its host and port, as its plugin and middleware call it."""
    host, port = place_of(url)
    return f"{client_host(host)}:{port}"


def server_of(engine_id: str) -> str:
    """The id of the server that this engine is behind: ranks are told under it, a slash and their number. Its own where it is none."""
    server, slash, rank = engine_id.rpartition("/")
    return server if slash and rank.isdecimal() else engine_id


def engine_id(environ: Mapping[str, str], arguments: Sequence[str], index: int = 0) -> str:
    """LEGATO_ENGINE_ID, else the host and port that a client on this host reaches the server at, as its command line has them.

    ``index`` tells the engines behind one server apart: the first has the plain id, the others ``id/1``, ``id/2``, …
    """
    name = environ.get(ENGINE_ID) or _address(arguments)
    return f"{name}/{index}" if index > 0 else name


def _address(arguments: Sequence[str]) -> str:
    """Where the server listens; an address that stands for all is the loopback's, which is what a local client's connection shows."""
    host = _option(arguments, "--host") or LOOPBACK
    return f"{client_host(host)}:{_option(arguments, '--port') or '8000'}"


def _option(arguments: Sequence[str], name: str) -> str:
    """The last value given: ``--name value`` or ``--name=value``."""
    value = ""
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            value = argument[len(name) + 1 :]
        elif argument == name and place + 1 < len(arguments):
            value = arguments[place + 1]
    return value
