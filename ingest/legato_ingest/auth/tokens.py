"""Who may write or read, and as which tenant: the tokens of a file.

One idea: a file holds a token's SHA-256, its tenant and what it may do, never the token; so whoever reads the file can use none of them.
Several of one tenant are valid at once, which makes a rotation: add the new one, hand it out, take the old one away. The file is read again
when it has changed, and one that cannot be read leaves the tokens that were read before in force. It knows no HTTP but a header's text.

A token is 256 random bits, so a plain hash keeps it: what makes passwords need a slow one is that people choose them (NIST SP 800-63B
§5.1.1.2 asks it of memorised secrets alone).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pathlib
import re
import secrets
import threading
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import LegatoError, SettingsError

__all__ = ["READ", "WRITE", "Token", "Tokens", "add", "load", "new_token", "remove"]

READ, WRITE = "read", "write"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEYS = frozenset(("name", "tenant", "may", "sha256"))
# A stat a request is nothing, but a file that is being written is read half: a second is soon enough.
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file: what the bearer of the token with this hash may do (``read`` or ``write``), and as which tenant."""

    name: str
    tenant: str
    may: str
    sha256: str


def new_token() -> str:
    """A token that nobody has: 256 random bits, with a beginning by which scanners of leaked secrets find it."""
    return f"legato_{secrets.token_urlsafe(32)}"


def load(path: pathlib.Path) -> tuple[Token, ...]:
    """The tokens of a file. Raises ``SettingsError``, which says where it is wrong and holds none of the file's text."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"LEGATO_TOKENS_FILE: {path}: {error.strerror}; make it with `legato token add`") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise SettingsError(f"LEGATO_TOKENS_FILE: {path} is no TOML; `legato token add` writes it") from None
    entries = read.pop("token", [])
    if read or not isinstance(entries, list):
        raise SettingsError(f"LEGATO_TOKENS_FILE: {path} has more than [[token]] tables; `legato token add` writes it")
    tokens = tuple(_token(path, number, entry) for number, entry in enumerate(entries, 1))
    for kind, values in (("name", [token.name for token in tokens]), ("sha256", [token.sha256 for token in tokens])):
        if len(set(values)) < len(values):
            raise SettingsError(f"LEGATO_TOKENS_FILE: {path} has one {kind} twice")
    return tokens


def _token(path: pathlib.Path, number: int, entry: object) -> Token:
    if not isinstance(entry, dict) or set(entry) != _KEYS or not all(isinstance(value, str) for value in entry.values()):
        raise SettingsError(
            f"LEGATO_TOKENS_FILE: token {number} of {path} needs {', '.join(sorted(_KEYS))}, each a string, and nothing else"
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
        return "its tenant must be 1 to 64 letters, digits, `_`, `.` or `-`, or of a reader `*` for all"
    if not _DIGEST.fullmatch(token.sha256):
        return "sha256 must be 64 hexadecimal digits"
    return ""


class Tokens:
    """The tokens of a file as it is now. Use from any thread. Raises ``SettingsError`` when the file cannot be used at the start."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen = _state(path)
        self._tokens: Sequence[Token] = load(path)
        self._looked = time.monotonic()
        self.fault = ""
        """Why the file as it is now cannot be used; empty when it can."""

    def holder(self, given: bytes, may: str) -> Token | None:
        """Whose token this is, when it may do that. The time that it takes tells nothing: every hash is compared, to its end."""
        digest = hashlib.sha256(given).hexdigest()
        found = None
        for token in self.all():
            if hmac.compare_digest(token.sha256, digest) and token.may == may:
                found = token
        return found

    def all(self) -> Sequence[Token]:
        """The tokens in force."""
        with self._lock:
            if time.monotonic() - self._looked >= _LOOK_EVERY_S:
                self._look()
            return self._tokens

    def _look(self) -> None:
        self._looked = time.monotonic()
        state = _state(self._path)
        if state == self._seen and not self.fault:
            return
        try:
            self._tokens, self._seen, self.fault = load(self._path), state, ""
        except SettingsError as error:
            self.fault = str(error)


def _state(path: pathlib.Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def add(path: pathlib.Path, name: str, tenant: str, may: str) -> str:
    """Make a token and write its hash to the file; the token, which is nowhere else. Raises ``LegatoError``."""
    known = load(path) if path.exists() else ()
    secret = new_token()
    token = Token(name, tenant, may, hashlib.sha256(secret.encode()).hexdigest())
    if problem := _problem(token):
        raise LegatoError(f"{name!r} for the tenant {tenant!r}: {problem}")
    if any(other.name == name for other in known):
        raise LegatoError(f"{path} has a token {name} already: give another name, or take that one away with `legato token remove {name}`")
    _write(path, (*known, token))
    return secret


def remove(path: pathlib.Path, name: str) -> None:
    """Take a token away. Raises ``LegatoError`` when there is none of this name."""
    known = load(path)
    kept = tuple(token for token in known if token.name != name)
    if len(kept) == len(known):
        raise LegatoError(f"{path} has no token {name}: `legato token list` shows those that it has")
    _write(path, kept)


def _write(path: pathlib.Path, tokens: Sequence[Token]) -> None:
    """Beside the file and over it: whoever reads sees the old or the new one, whole. Who may read it stays as it was."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    lines = ["# Written by `legato token`. Hashes alone: a token that was lost is replaced, not found."]
    for token in tokens:
        lines += ["", "[[token]]", *(f'{key} = "{getattr(token, key)}"' for key in ("name", "tenant", "may", "sha256"))]
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), mode)
        os.replace(beside, path)
    except OSError as error:
        raise LegatoError(f"cannot write {path} ({error.strerror})") from None
