"""Who is asking: the client and the conversation that streams of this context belong to.

One idea: context variables, so that tasks and threads carry them by themselves. The client's name never leaves the process: its keyed
hash does, and only when a key is set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["client_hash", "context", "current_client", "current_conversation"]

_client: ContextVar[str] = ContextVar("legato_client", default="")
_conversation: ContextVar[str] = ContextVar("legato_conversation", default="")


@contextmanager
def context(*, client: str = "", conversation_id: str = "") -> Iterator[None]:
    """Streams begun inside belong to this client (user or device; hashed) and conversation (sent as it is)."""
    tokens = (_client.set(client), _conversation.set(conversation_id))
    try:
        yield
    finally:
        _client.reset(tokens[0])
        _conversation.reset(tokens[1])


def current_client() -> str:
    """The client of this context, or an empty string."""
    return _client.get()


def current_conversation() -> str:
    """The conversation of this context, or an empty string."""
    return _conversation.get()


def client_hash(client: str, key: str) -> str:
    """BLAKE2b of the client under the key, 16 hex digits; empty without either."""
    if not client or not key:
        return ""
    return hashlib.blake2b(client.encode(), digest_size=8, key=key.encode()[:64]).hexdigest()
