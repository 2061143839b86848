"""Rules that the plugins and the agent must share: the path of the pipe, and the id of an engine.

Both are functions of the environment, the user and the command line, so that two processes of one user with the same settings agree without
communication. The module uses the standard library only; it creates no folder and does not check who can write to one.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import sys
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

__all__ = ["ENGINE_ID", "LOOPBACK", "client_host", "engine_id", "engine_id_from_url", "host_and_port", "pipe_path", "server_id"]

ENGINE_ID = "LEGATO_ENGINE_ID"
"""The variable with the id of an engine."""
LOOPBACK = "127.0.0.1"
"""The one name that engine ids use for this host."""
_LOOPBACK_NAMES = frozenset((LOOPBACK, "localhost", "0.0.0.0", "::", "[::]", "::1", "[::1]"))


def pipe_path(environ: Mapping[str, str]) -> pathlib.Path:
    """Return LEGATO_ENGINE_PIPE, or else ``engine.pipe`` in the default folder of this process's user.

    For root on Linux it is /run/legato-engine, where no other user can create anything. For another user it is ``legato`` in
    XDG_RUNTIME_DIR, or /tmp/legato-UID if that is not set or belongs to another user, as it may after ``su``.
    """
    setting = environ.get("LEGATO_ENGINE_PIPE")
    return pathlib.Path(setting) if setting else _default_folder(environ.get("XDG_RUNTIME_DIR", "")) / "engine.pipe"


def _default_folder(runtime: str) -> pathlib.Path:
    user = os.geteuid()
    if user == 0 and sys.platform == "linux":
        return pathlib.Path("/run/legato-engine")
    # Without the variable /run/user/UID is not used: it exists only while the user is logged in, so two processes could disagree.
    if os.path.isabs(runtime) and not _belongs_to_another(runtime, user):
        return pathlib.Path(runtime) / "legato"
    return pathlib.Path("/tmp") / f"legato-{user}"


def _belongs_to_another(folder: str, user: int) -> bool:
    try:
        return os.stat(folder).st_uid != user
    except OSError:
        # A missing folder counts as this user's: the agent then reports that it cannot create the pipe there.
        return False


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

    ``arguments`` is the server's command line; a host's name in it is resolved, as the server does to listen. ``index`` numbers the engines
    behind one server: the first has the plain id, the others have ``id/1``, ``id/2``, …
    """
    name = environ.get(ENGINE_ID) or _address(arguments)
    return f"{name}/{index}" if index > 0 else name


def _address(arguments: Sequence[str]) -> str:
    host = client_host(_option(arguments, "--host") or LOOPBACK)
    # The agent finds the server's metrics at the address where it listens, and knows no name of it.
    with contextlib.suppress(OSError, UnicodeError):
        host = client_host(socket.gethostbyname(host))
    return f"{host}:{_option(arguments, '--port') or '8000'}"


def _option(arguments: Sequence[str], name: str) -> str:
    """Return the last value of an option, given as ``--name value`` or ``--name=value``; '' without one."""
    value = ""
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            value = argument[len(name) + 1 :]
        elif argument == name and place + 1 < len(arguments):
            value = arguments[place + 1]
    return value
