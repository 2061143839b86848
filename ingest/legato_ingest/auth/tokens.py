"""The token file: which tokens may write or read, and as which tenant.

The file holds the SHA-256 of each token with its tenant and its permission, never the token itself, so the file does not grant access. A
tenant can have several valid tokens, which permits rotation: add the new token, distribute it, remove the old one. The file is read again
when it changes; while it cannot be read, the tokens read last stay valid.

A token has 256 random bits, so a fast hash protects it. Slow hashes are needed for passwords, because people choose them (NIST SP 800-63B
§5.1.1.2 demands them for memorised secrets only).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import pathlib
import re
import secrets
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import LegatoError, SettingsError

__all__ = ["READ", "WRITE", "Token", "Tokens", "add", "load", "new_token", "remove"]

_log = logging.getLogger("legato")
READ, WRITE = "read", "write"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ORIGIN = re.compile(r"https?://[a-z0-9.\-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_KEYS = ("name", "tenant", "may", "sha256")
_OPTIONAL = ("origin",)
# The least time between two checks of the file for changes.
_CHECK_EVERY_S = 1.0
# How long a command waits for others that change the file, each for some milliseconds; the pause between two looks.
_CHANGED_WITHIN_S, _RETRY_S = 10.0, 0.01


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the file: the hash of a token, its permission ``may`` (``read`` or ``write``) and its tenant.

    ``origin`` is the origin of the pages that may send it (RFC 6454), such as ``https://shop.example``; empty for no restriction.
    """

    name: str
    tenant: str
    may: str
    sha256: str
    origin: str = ""


def new_token() -> str:
    """Return a new token: 256 random bits with a prefix by which scanners for leaked secrets recognise it."""
    return f"legato_{secrets.token_urlsafe(32)}"


def load(path: pathlib.Path) -> tuple[Token, ...]:
    """Return the tokens of a file. Raises ``SettingsError`` with the place of the fault and without any text of the file."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"LEGATO_TOKENS_FILE: {path}: {error.strerror}; create it with `legato token add`") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise SettingsError(f"LEGATO_TOKENS_FILE: {path} is not valid TOML; create it with `legato token add`") from None
    entries = read.pop("token", [])
    if read or not isinstance(entries, list):
        raise SettingsError(f"LEGATO_TOKENS_FILE: {path} must hold [[token]] tables and nothing else; create it with `legato token add`")
    tokens = tuple(_token(path, number, entry) for number, entry in enumerate(entries, 1))
    for kind, values in (("name", [token.name for token in tokens]), ("sha256", [token.sha256 for token in tokens])):
        if len(set(values)) < len(values):
            raise SettingsError(f"LEGATO_TOKENS_FILE: {path} has the same {kind} twice")
    return tokens


def _token(path: pathlib.Path, number: int, entry: object) -> Token:
    if not isinstance(entry, dict) or set(entry) - {*_OPTIONAL} != {*_KEYS} or not all(isinstance(value, str) for value in entry.values()):
        raise SettingsError(
            f"LEGATO_TOKENS_FILE: token {number} of {path} needs {', '.join(sorted(_KEYS))}, each a string, and nothing else but origin"
        )
    token = Token(**entry)
    problem = _problem(token)
    if problem:
        raise SettingsError(f"LEGATO_TOKENS_FILE: token {number} of {path}: {problem}")
    return token


def _problem(token: Token) -> str:
    if not _NAME.fullmatch(token.name):
        return "its name must be 1 to 64 letters, digits, `_`, `.` or `-`"
    if token.may not in (READ, WRITE):
        return "`may` must be `read` or `write`"
    if not _NAME.fullmatch(token.tenant) and (token.tenant, token.may) != (ALL_TENANTS, READ):
        return "its tenant must be 1 to 64 letters, digits, `_`, `.` or `-`; a token that may read can have `*` for all tenants"
    if token.origin and (token.may != WRITE or not _ORIGIN.fullmatch(token.origin)):
        return "an origin is scheme and host in lower case, such as `https://shop.example`, and only a token that may write can have one"
    if not _DIGEST.fullmatch(token.sha256):
        return "sha256 must be 64 hexadecimal digits"
    return ""


class Tokens:
    """The tokens of a file, kept up to date. Thread-safe. The constructor raises ``SettingsError`` when the file cannot be used."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._loaded = _state(path)
        self._tokens: Sequence[Token] = load(path)
        self._checked = time.monotonic()
        self.fault = ""
        """The reason why the present file cannot be used; empty when it can."""

    def find(self, given: bytes, may: str) -> Token | None:
        """Return the entry of a token with this permission; None without one. The time does not depend on which hashes match."""
        digest = hashlib.sha256(given).hexdigest()
        found = None
        for token in self.all():
            if hmac.compare_digest(token.sha256, digest) and token.may == may:
                found = token
        return found

    def all(self) -> Sequence[Token]:
        """Return the valid tokens."""
        with self._lock:
            if time.monotonic() - self._checked >= _CHECK_EVERY_S:
                self._reload()
            return self._tokens

    def _reload(self) -> None:
        self._checked = time.monotonic()
        state = _state(self._path)
        if state == self._loaded and not self.fault:
            return
        try:
            self._tokens, self._loaded, self.fault = load(self._path), state, ""
        except SettingsError as error:
            if not self.fault:
                _log.error("the tokens file cannot be read, so the tokens of its last version remain valid: %s", error)
            self.fault = str(error)


def _state(path: pathlib.Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def add(path: pathlib.Path, name: str, tenant: str, may: str, origin: str = "") -> str:
    """Create a token, write its hash to the file and return the token, which is stored nowhere. Raises ``LegatoError``."""
    secret = new_token()
    token = Token(name, tenant, may, hashlib.sha256(secret.encode()).hexdigest(), origin)
    if problem := _problem(token):
        raise LegatoError(f"{name!r} for the tenant {tenant!r}: {problem}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unwritable(path, error) from None
    with _changing(path):
        present = load(path) if path.exists() else ()
        if any(other.name == name for other in present):
            raise LegatoError(
                f"{path} already has a token {name}: choose another name, or remove that token with `legato token remove {name}`"
            )
        _write(path, (*present, token))
    return secret


def remove(path: pathlib.Path, name: str) -> None:
    """Remove a token from the file. Raises ``LegatoError`` when no token has this name."""
    load(path)
    with _changing(path):
        present = load(path)
        kept = tuple(token for token in present if token.name != name)
        if len(kept) == len(present):
            raise LegatoError(f"{path} has no token {name}: `legato token list` shows its tokens")
        _write(path, kept)


@contextlib.contextmanager
def _changing(path: pathlib.Path) -> Iterator[None]:
    """Keep other commands from changing the file, from its reading until its replacement. Raises ``LegatoError``.

    The kernel's lock (flock) is on the folder, which is the same for root and for the user of the service: a lock file that root creates
    could not be opened by that user, and the file itself is replaced.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        until_s = time.monotonic() + _CHANGED_WITHIN_S
        while not _is_locked(path, folder):
            if time.monotonic() > until_s:
                raise LegatoError(f"another process has held the lock of {path.parent} for {_CHANGED_WITHIN_S:g} s: nothing was changed")
            time.sleep(_RETRY_S)
        yield
    finally:
        os.close(folder)


def _is_locked(path: pathlib.Path, folder: int) -> bool:
    """Take the lock of the folder, if it is free."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unwritable(path, error) from None
    return True


def _unwritable(path: pathlib.Path, error: OSError, hint: str = "") -> LegatoError:
    return LegatoError(f"cannot write {path} ({error.strerror}){hint}")


def _write(path: pathlib.Path, tokens: Sequence[Token]) -> None:
    """Replace the file atomically by way of a temporary file next to it. Its mode and owner are kept; a new file has mode 0600.

    A file of another owner could not be read by the service, which would go on with the tokens that it knows.
    """
    before = path.stat() if path.exists() else None
    lines = ["# Written by `legato token`. Holds hashes only: a lost token cannot be recovered, only replaced."]
    for token in tokens:
        values = {key: getattr(token, key) for key in (*_KEYS, *_OPTIONAL)}
        lines += ["", "[[token]]", *(f'{key} = "{value}"' for key, value in values.items() if value or key in _KEYS)]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
            if before is not None:
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(stream.fileno(), before.st_uid, before.st_gid)
                os.fchmod(stream.fileno(), before.st_mode & 0o777)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        hint = ""
        if before is not None and isinstance(error, PermissionError):
            hint = f"; it belongs to the user {before.st_uid}: run the command as that user or as root"
        raise _unwritable(path, error, hint) from None
