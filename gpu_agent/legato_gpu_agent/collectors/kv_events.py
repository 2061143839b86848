"""Counts the blocks of the KV cache that an engine stored, removed and cleared (vLLM and SGLang with --kv-events-config).

The events contain the tokens of prompts. The decoder's types have no field for them, so they are skipped in the encoded bytes and never
become values. Blocks removed while requests wait show a full cache before the first preemption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from legato_gpu_agent.collectors.decode_errors import DecodeError
from legato_gpu_agent.collectors.measurement import Measured, Measurement
from legato_gpu_agent.collectors.zmq_subscriber import ZmqSubscriber

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
    """Receives the events that ``engine_id`` publishes at ``endpoint``."""

    def __init__(self, engine_id: str, endpoint: str, every_s: float = 1.0) -> None:
        self.name, self.every_s = f"kv events {engine_id}", every_s
        self._id = engine_id
        # An idle vLLM publishes nothing.
        expected = "KV cache events as vLLM and SGLang publish them"
        self._subscriber = ZmqSubscriber(endpoint, self._take, expected=expected, has_heartbeat=False)
        self._decoder = msgspec.msgpack.Decoder(_Batch)
        self._blocks: Counter[tuple[str, str]] = Counter()
        self._start_ns = 0

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield counters of blocks and messages; the first call starts the subscription.

        Raises ``NotAvailable`` after a long time without any message, ``DecodeError`` if no message can be decoded.
        """
        self._start_ns = self._start_ns or now_ns
        self._subscriber.listen()
        owner = ("legato.engine.id", self._id)
        # A copy, because the receiving thread continues to count.
        for (kind, medium), count in dict(self._blocks).items():
            attributes = (owner, ("legato.event", kind), ("legato.medium", medium))
            yield Measurement("legato.engine.kv_cache.blocks", "{block}", float(count), attributes, self._start_ns)
        for outcome, count in (("lost", self._subscriber.lost), ("bad", self._subscriber.bad)):
            yield Measurement("legato.agent.kv_events", "{message}", float(count), (owner, ("legato.outcome", outcome)), self._start_ns)

    def close(self) -> None:
        """Stop receiving."""
        self._subscriber.close()

    def _take(self, _: int, payload: bytes) -> None:
        """Count the blocks of one message. Raises ``DecodeError`` or the decoder's error for an invalid message."""
        counts: Counter[tuple[str, str]] = Counter()
        for event in self._decoder.decode(payload).events:
            kind = _KINDS.get(event.type)
            if kind is not None:
                counts[kind, (event.medium or "")[:32]] += 1 if kind == "cleared" else _length(event.block_hashes)
        for key, count in counts.items():
            if len(self._blocks) < 3 * _MEDIUMS_MAX or key in self._blocks:
                self._blocks[key] += count


def _length(array: msgspec.Raw) -> int:
    """Return the length in the header of an encoded array, without decoding its elements, of which there may be a million."""
    head = bytes(memoryview(array)[:5])
    if 0x90 <= head[0] <= 0x9F:
        return head[0] & 0x0F
    if head[0] in (0xDC, 0xDD):
        return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5], "big")
    raise DecodeError("block_hashes is not an array")
