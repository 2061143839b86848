"""KV cache events as vLLM and SGLang publish them, over a real ZMQ publisher: blocks are counted, and no prompt is kept."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.engine_sources import NOW, PublishingEngine, published
from helpers.platform.examples import examples
from helpers.servers.publisher import Publisher, reachable
from helpers.servers.waiting import until
from legato_gpu_agent.collectors import zmq_subscriber
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.decode_errors import DecodeError
from legato_gpu_agent.collectors.kv_events import KvEvents
from legato_gpu_agent.collectors.measurement import Measurement

RECORDED = pathlib.Path(__file__).parents[1] / "data" / "kv_events.jsonl"
"""Batches as a real vLLM 0.32 published them, one per line."""


class EventBatch(msgspec.Struct, array_like=True):
    """A batch, as both engines declare it."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, tag=True):
    """An event: a map with the name of its class under ``type``."""


class BlockStored(KVCacheEvent):
    """An event of stored blocks, with the tokens of the prompt."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    """An event of removed blocks."""

    block_hashes: list[int | bytes]
    medium: str | None = None


class AllBlocksCleared(KVCacheEvent):
    """An event of a cleared cache."""


def batch(*events: KVCacheEvent) -> bytes:
    """Return a message with these events."""
    return msgspec.msgpack.encode(EventBatch(1_700_000_000.5, list(events), 0))


def stored(hashes: Sequence[int | bytes], medium: str | None = "GPU", tokens: Sequence[int] = (1, 2, 3)) -> BlockStored:
    """Return an event of stored blocks, with the tokens of a prompt."""
    return BlockStored(list(hashes), None, list(tokens), 16, None, medium, "a session")


class World(PublishingEngine):
    """An engine that publishes KV cache events."""

    topic = b"kv-events"

    def __init__(self, publisher: Publisher) -> None:
        super().__init__(publisher)
        self.collector: KvEvents = KvEvents("e", publisher.endpoint)
        self.number = 0

    def collect(self) -> list[Measurement]:
        """Run a round."""
        found = list(self.collector.collect(NOW))
        assert all(isinstance(each, Measurement) and each.start_ns == NOW for each in found)
        return [each for each in found if isinstance(each, Measurement)]

    def blocks(self) -> dict[tuple[str, str], float]:
        """Return blocks by event and medium."""
        named = [(dict(each.attributes), each) for each in self.collect() if each.metric == "legato.engine.kv_cache.blocks"]
        assert all(attributes["legato.engine.id"] == "e" and each.unit == "{block}" for attributes, each in named)
        return {(attributes["legato.event"], attributes["legato.medium"]): each.value for attributes, each in named}

    def messages(self) -> dict[str, float]:
        """Return the numbers of lost and bad messages."""
        return {dict(each.attributes)["legato.outcome"]: each.value for each in self.collect() if each.metric == "legato.agent.kv_events"}

    def publish(self, *payloads: bytes, first: int | None = None) -> None:
        """Send these messages with consecutive numbers, and wait until they are received."""
        start = self.number if first is None else first
        self.number = start + len(payloads)
        super().publish(*payloads, first=start)


@pytest.fixture
def world() -> Iterator[World]:
    """A world for one test."""
    with published(World) as each:
        yield each


@pytest.fixture(scope="module")
def lasting() -> Iterator[World]:
    """A world for many examples."""
    with published(World) as each:
        yield each


def test_blocks_are_counted_by_kind_and_medium(world: World) -> None:
    """Over all batches. Hashes may be numbers or bytes, and a cleared cache counts once."""
    many = list(range(2**40, 2**40 + 70_000))
    world.publish(
        batch(stored([2**64 - 1, 5]), BlockRemoved([b"\x01" * 32], "CPU_PINNED"), AllBlocksCleared()),
        batch(stored([1], None), stored([]), stored(range(20)), BlockRemoved([7, 8, 9], "GPU")),
        batch(stored(many, "DISK")),
        batch(AllBlocksCleared()),
    )
    assert world.blocks() == {
        ("stored", "GPU"): 22,
        ("stored", ""): 1,
        ("stored", "DISK"): 70_000,
        ("removed", "CPU_PINNED"): 1,
        ("removed", "GPU"): 3,
        ("cleared", ""): 2,
    }
    assert world.messages() == {"lost": 0, "bad": 0}


def test_recorded_events_are_counted() -> None:
    """The counts of vLLM's recorded messages equal those of plain Python."""
    batches = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    expected: Counter[tuple[str, str]] = Counter()
    for _, events, _ in batches:
        for event in events:
            expected[event["type"].removeprefix("Block").lower(), event["medium"]] += len(event["block_hashes"])
    with published(World) as world:
        world.publish(*(msgspec.msgpack.encode(each) for each in batches))
        assert len(batches) == 24 and world.blocks() == expected and len(expected) == 2


def test_missing_numbers_count_as_lost(world: World) -> None:
    """Their contents are unknown."""
    world.publish(batch(stored([1])))
    world.number += 5
    world.publish(batch(stored([1])))
    assert world.messages() == {"lost": 5, "bad": 0} and world.blocks() == {("stored", "GPU"): 2}


def test_a_restarted_engine_continues_the_counts(world: World) -> None:
    """Its numbers start again, which loses nothing."""
    world.publish(batch(stored([1])))
    world.publisher.close()
    with Publisher(world.publisher.endpoint) as successor:
        successor.wait()
        world.publisher, world.number = successor, 0
        world.publish(batch(BlockRemoved([1], "GPU")))
    assert world.blocks() == {("stored", "GPU"): 1, ("removed", "GPU"): 1} and world.messages() == {"lost": 0, "bad": 0}


MARKS = [777_000_001 + number for number in range(64)]


def test_no_token_of_a_prompt_is_kept(world: World) -> None:
    """Neither as a number nor as bytes anywhere in the collector; the decoder's types have no field for tokens."""
    for number in range(50):
        world.publisher.publish(number, batch(stored([number], "GPU", MARKS)))
    until(lambda: world.blocks().get(("stored", "GPU")) == 50)
    held = list(reachable(world.collector))
    assert "GPU" in held
    numbers, texts = [each for each in held if isinstance(each, int)], [each for each in held if isinstance(each, bytes | bytearray)]
    assert not set(MARKS) & set(numbers)
    assert not [each for each in texts for mark in MARKS if mark.to_bytes(4, "big") in each]
    (event,) = world.collector._decoder.decode(batch(stored([1]))).events
    assert event.__struct_fields__ == ("type", "block_hashes", "medium")


def test_mediums_are_bounded(world: World) -> None:
    """Of unlimited and long names some are counted; known ones continue to be counted."""
    world.publish(batch(stored([1])), batch(*(stored([1], f"{number}" * 40) for number in range(1_000))), batch(stored([1], "GPU")))
    blocks = world.blocks()
    assert len(blocks) == 48 and blocks["stored", "GPU"] == 2 and max(len(medium) for _, medium in blocks) == 32


def event(**changed: Any) -> bytes:
    """Return a batch of one good event and one with changes; ``None`` removes a field."""
    fields = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", **changed}
    good = {"type": "BlockRemoved", "block_hashes": [1]}
    return msgspec.msgpack.encode([1.5, [good, {key: value for key, value in fields.items() if value is not None}], 0])


HEAD = b"\x92\x01\x91\x82\xa4type\xabBlockStored\xacblock_hashes"
BAD = {
    "no type": event(type=None),
    "a type that is none": event(type=5),
    "a medium that is none": event(medium=["GPU"]),
    "hashes that are none": event(block_hashes=7),
    "hashes by name": event(block_hashes={"a": 1}),
    "a map": msgspec.msgpack.encode({"ts": 1.5, "events": []}),
    "no events": msgspec.msgpack.encode([1.5]),
    "one event": msgspec.msgpack.encode([1.5, {"type": "AllBlocksCleared"}]),
    "no time": msgspec.msgpack.encode([None, []]),
    "nothing": b"",
    "cut": batch(stored([1]))[:-1],
    "too much": batch(stored([1])) + b"\x00",
    "deep": b"\x93\x01\x90" + b"\x91" * 60_000 + b"\xc0",
    "hashes that claim to be many": HEAD + b"\xdd\xff\xff\xff\xff",
    "events that claim to be many": b"\x92\x01\xdd\xff\xff\xff\xff",
    "bad text": batch(AllBlocksCleared()).replace(b"Cleared", b"Clear\xff\xff"),
}


@pytest.mark.parametrize("payload", BAD.values(), ids=BAD.keys())
def test_an_invalid_message_is_bad(world: World, payload: bytes) -> None:
    """As a whole: none of its events counts."""
    world.publish(payload, batch(stored([1])))
    assert world.messages() == {"lost": 0, "bad": 1} and world.blocks() == {("stored", "GPU"): 1}


def test_an_engine_with_other_events_is_down(world: World) -> None:
    """The reason quotes nothing of the messages; it is up again with the next good message."""
    world.publish(msgspec.msgpack.encode({"ts": 1.5, "events": "the prompt of a customer"}))
    why = "Expected `array`, got `object`; expected KV cache events as vLLM and SGLang publish them"
    with pytest.raises(DecodeError) as failed:
        world.collect()
    assert str(failed.value) == f"{world.publisher.endpoint}: no messages could be decoded (1 received); the last: {why}"
    world.publish(event(block_hashes=7))
    with pytest.raises(DecodeError, match=r"\(2 received\); the last: block_hashes is not an array; expected"):
        world.collect()
    world.publish(batch())
    assert world.messages() == {"lost": 0, "bad": 2}


def test_unknown_fields_are_skipped(world: World) -> None:
    """Events and fields of later versions, and further elements at the end."""
    world.publish(
        msgspec.msgpack.encode(
            [1, [{"type": "BlockPinned", "block_hashes": [1]}, {"type": "BlockRemoved", "block_hashes": [1], "new": {}}], 0, 5]
        )
    )
    assert world.blocks() == {("removed", ""): 1} and world.messages() == {"lost": 0, "bad": 0}


def test_an_idle_engine_is_available(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM publishes nothing while no block changes, for any time."""
    world.publish(batch(stored([1], "GPU")))
    assert world.blocks() == {("stored", "GPU"): 1}
    monkeypatch.setattr(zmq_subscriber, "_SILENT_S", 0.0)
    assert world.blocks() == {("stored", "GPU"): 1}


def test_an_endpoint_without_a_publisher_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the silence."""
    monkeypatch.setattr(zmq_subscriber, "_SILENT_S", 0.0)
    events = KvEvents("e", "tcp://127.0.0.1:9")
    with pytest.raises(NotAvailable, match="no message from tcp://127.0.0.1:9"):
        list(events.collect(NOW))
    events.close()


def arbitrary_messages() -> st.SearchStrategy[bytes]:
    """Random bytes, batches with changed bytes, and events with random values under the right names."""
    values = st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=40), st.lists(st.integers(0, 2**64 - 1), max_size=20))
    kinds = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
    events = st.fixed_dictionaries({"type": kinds}, optional={"block_hashes": values, "medium": values, "token_ids": values})
    whole = batch(stored([1, 2], "GPU"), BlockRemoved([3], "CPU"))
    changed = st.builds(lambda at, byte: whole[:at] + bytes([byte]) + whole[at + 1 :], st.integers(0, len(whole) - 1), st.integers(0, 255))
    return st.one_of(st.binary(max_size=40), changed, st.lists(events, max_size=4).map(lambda each: msgspec.msgpack.encode([1.5, each])))


def test_any_message_is_harmless(lasting: World) -> None:
    """For any published message a round raises nothing else, counters only grow, and the state is bounded."""

    @examples(30)
    @given(st.lists(arbitrary_messages(), min_size=1, max_size=5))
    def check(payloads: list[bytes]) -> None:
        before = lasting.blocks()
        lasting.publish(*payloads, batch())
        after = lasting.blocks()
        assert all(after[key] >= count for key, count in before.items())
        assert len(after) <= 48 and sum(1 for _ in reachable(lasting.collector)) < 2_000

    check()
