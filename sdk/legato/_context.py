"""The client and the conversation that a stream belongs to, as context variables, which asyncio tasks inherit.

The client's name never leaves the process. Only its keyed hash is sent, and only if LEGATO_CLIENT_HASH_KEY is set.
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
    """Assign the streams that begin inside the block to a client (user or device; sent hashed) and a conversation (sent as given)."""
    tokens = (_client.set(client), _conversation.set(conversation_id))
    try:
        yield
    finally:
        _client.reset(tokens[0])
        _conversation.reset(tokens[1])


def current_client() -> str:
    """Return the client of this context, or an empty string."""
    return _client.get()


def current_conversation() -> str:
    """Return the conversation of this context, or an empty string."""
    return _conversation.get()


def client_hash(client: str, key: str) -> str:
    """Return the keyed BLAKE2b hash of the client as 16 hex digits; an empty string if the client or the key is empty."""
    if not client or not key:
        return ""
    return hashlib.blake2b(client.encode(), digest_size=8, key=key.encode()[:64]).hexdigest()
