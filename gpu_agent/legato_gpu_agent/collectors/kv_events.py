"""Blocks of the KV cache that an engine stored, dropped and cleared (vLLM and SGLang with --kv-events-config), counted.

One idea: the events hold the tokens of prompts, so what is decoded has no place for them: they are skipped in the bytes and never become
values. Blocks that are dropped while requests wait show that the cache is full before a preemption does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from legato_gpu_agent.collectors.decode_errors import Unusable
from legato_gpu_agent.collectors.measurement import Found, Reading
from legato_gpu_agent.collectors.zmq_subscriber import Subscription

__all__ = ["KvEvents"]

_KINDS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
_MEDIUMS_MAX = 16


class _Event(msgspec.Struct):
    type: str
    block_hashes: msgspec.Raw = msgspec.Raw(b"\x90")
    medium: str | None = None


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Event]


class KvEvents:
    """The events published at ``endpoint`` by the engine called ``engine_id``."""

    def __init__(self, engine_id: str, endpoint: str, every_s: float = 1.0) -> None:
        self.name, self.every_s = f"kv events {engine_id}", every_s
        self._id = engine_id
        self._subscription = Subscription(endpoint, self._take, expected="events of the KV cache, as vLLM and SGLang publish them")
        self._decoder = msgspec.msgpack.Decoder(_Batch)
        self._blocks: Counter[tuple[str, str]] = Counter()
        self._since_ns = 0

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Counters of blocks and messages. Listens from the first round on.

        Raises ``Absent`` after a long silence, ``Unusable`` where all that came is bad.
        """
        self._since_ns = self._since_ns or now_ns
        self._subscription.listen()
        whose = ("legato.engine.id", self._id)
        # A copy: the thread that listens goes on counting.
        for (kind, medium), count in dict(self._blocks).items():
            attributes = (whose, ("legato.event", kind), ("legato.medium", medium))
            yield Reading("legato.engine.kv_cache.blocks", "{block}", float(count), attributes, self._since_ns)
        for what, count in (("lost", self._subscription.lost), ("bad", self._subscription.bad)):
            yield Reading("legato.agent.kv_events", "{message}", float(count), (whose, ("legato.outcome", what)), self._since_ns)

    def close(self) -> None:
        """Listen no more."""
        self._subscription.close()

    def _take(self, _: int, payload: bytes) -> None:
        """Raises ``Unusable`` and what the decoder may for what cannot be."""
        counts: Counter[tuple[str, str]] = Counter()
        for event in self._decoder.decode(payload).events:
            kind = _KINDS.get(event.type)
            if kind is not None:
                counts[kind, (event.medium or "")[:32]] += 1 if kind == "cleared" else _length(event.block_hashes)
        for key, count in counts.items():
            if len(self._blocks) < 3 * _MEDIUMS_MAX or key in self._blocks:
                self._blocks[key] += count


def _length(array: msgspec.Raw) -> int:
    """How many elements an encoded array says that it has: the hashes themselves are of no use, and may be a million."""
    head = bytes(memoryview(array)[:5])
    if 0x90 <= head[0] <= 0x9F:
        return head[0] & 0x0F
    if head[0] in (0xDC, 0xDD):
        return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5], "big")
    raise Unusable("block_hashes is no array")
