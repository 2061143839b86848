"""Events of the KV cache as vLLM and SGLang publish them, over a real ZMQ publisher: blocks are counted, and no prompt is ever held."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.servers.publisher import Publisher, reachable
from helpers.servers.waiting import until
from legato_gpu_agent.collectors import Absent, zmq_subscriber
from legato_gpu_agent.collectors.decode_errors import Unusable
from legato_gpu_agent.collectors.kv_events import KvEvents
from legato_gpu_agent.collectors.measurement import Reading

NOW = 1_700_000_000_000_000_000
RECORDED = pathlib.Path(__file__).parents[1] / "data" / "kv_events.jsonl"
"""Batches as a real vLLM 0.32 published them, a line each."""


class EventBatch(msgspec.Struct, array_like=True):
    """A batch, as both engines declare it."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, tag=True):
    """An event: a map with its class's name under ``type``."""


class BlockStored(KVCacheEvent):
    """Blocks that came into the cache, with the tokens of the prompt."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    """Blocks that were dropped."""

    block_hashes: list[int | bytes]
    medium: str | None = None


class AllBlocksCleared(KVCacheEvent):
    """The cache was emptied."""


def batch(*events: KVCacheEvent) -> bytes:
    """A message of these events."""
    return msgspec.msgpack.encode(EventBatch(1_700_000_000.5, list(events), 0))


def stored(hashes: Sequence[int | bytes], medium: str | None = "GPU", tokens: Sequence[int] = (1, 2, 3)) -> BlockStored:
    """Blocks that came, with a prompt's tokens."""
    return BlockStored(list(hashes), None, list(tokens), 16, None, medium, "a session")


class World:
    """A publisher and the collector that listens to it."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher, self.events = publisher, KvEvents("e", publisher.endpoint)
        self.number = 0

    def collect(self) -> list[Reading]:
        """A round."""
        found = list(self.events.collect(NOW))
        assert all(isinstance(each, Reading) and each.since_ns == NOW for each in found)
        return [each for each in found if isinstance(each, Reading)]

    def blocks(self) -> dict[tuple[str, str], float]:
        """Blocks by what became of them, and medium."""
        named = [(dict(each.attributes), each) for each in self.collect() if each.metric == "legato.engine.kv_cache.blocks"]
        assert all(attributes["legato.engine.id"] == "e" and each.unit == "{block}" for attributes, each in named)
        return {(attributes["legato.event"], attributes["legato.medium"]): each.value for attributes, each in named}

    def messages(self) -> dict[str, float]:
        """Those that were lost, and that were bad."""
        return {dict(each.attributes)["legato.outcome"]: each.value for each in self.collect() if each.metric == "legato.agent.kv_events"}

    def publish(self, *payloads: bytes) -> None:
        """These messages; and wait until they came."""
        heard = self.events._subscription
        wanted = heard.taken + heard.bad + len(payloads)
        for payload in payloads:
            self.publisher.publish(self.number, payload, b"kv-events")
            self.number += 1
        until(lambda: heard.taken + heard.bad == wanted)


@contextmanager
def listening() -> Iterator[World]:
    """A world whose collector listens."""
    with Publisher() as publisher:
        world = World(publisher)
        try:
            world.collect()
            publisher.wait()
            yield world
        finally:
            world.events.close()


@pytest.fixture
def world() -> Iterator[World]:
    """One for the test."""
    with listening() as each:
        yield each


@pytest.fixture(scope="module")
def lasting() -> Iterator[World]:
    """One for many examples."""
    with listening() as each:
        yield each


def test_blocks_are_counted_by_kind_and_medium(world: World) -> None:
    """Over all batches; hashes may be numbers or bytes, and a cache that is cleared counts once."""
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


def test_real_events_are_counted() -> None:
    """What vLLM published is what plain Python counts in it."""
    batches = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    expected: Counter[tuple[str, str]] = Counter()
    for _, events, _ in batches:
        for event in events:
            expected[event["type"].removeprefix("Block").lower(), event["medium"]] += len(event["block_hashes"])
    with listening() as world:
        world.publish(*(msgspec.msgpack.encode(each) for each in batches))
        assert len(batches) == 24 and world.blocks() == expected and len(expected) == 2


def test_numbers_that_are_left_out_were_lost(world: World) -> None:
    """Nobody knows what was in them."""
    world.publish(batch(stored([1])))
    world.number += 5
    world.publish(batch(stored([1])))
    assert world.messages() == {"lost": 5, "bad": 0} and world.blocks() == {("stored", "GPU"): 2}


def test_an_engine_that_restarts_is_counted_on(world: World) -> None:
    """Its numbers begin anew, and nothing was lost by that."""
    world.publish(batch(stored([1])))
    world.publisher.close()
    with Publisher(world.publisher.endpoint) as successor:
        successor.wait()
        world.publisher, world.number = successor, 0
        world.publish(batch(BlockRemoved([1], "GPU")))
    assert world.blocks() == {("stored", "GPU"): 1, ("removed", "GPU"): 1} and world.messages() == {"lost": 0, "bad": 0}


MARKS = [777_000_001 + number for number in range(64)]


def test_no_token_of_a_prompt_is_held(world: World) -> None:
    """Neither as a number nor as bytes, in whatever the collector holds; and what is decoded has no field for them."""
    for number in range(50):
        world.publisher.publish(number, batch(stored([number], "GPU", MARKS)))
    until(lambda: world.blocks().get(("stored", "GPU")) == 50)
    held = list(reachable(world.events))
    assert "GPU" in held
    numbers, texts = [each for each in held if isinstance(each, int)], [each for each in held if isinstance(each, bytes | bytearray)]
    assert not set(MARKS) & set(numbers)
    assert not [each for each in texts for mark in MARKS if mark.to_bytes(4, "big") in each]
    (event,) = world.events._decoder.decode(batch(stored([1]))).events
    assert event.__struct_fields__ == ("type", "block_hashes", "medium")


def test_mediums_are_bounded(world: World) -> None:
    """Names without end, and without bound, are counted for some; those that are known go on being counted."""
    world.publish(batch(stored([1])), batch(*(stored([1], f"{number}" * 40) for number in range(1_000))), batch(stored([1], "GPU")))
    blocks = world.blocks()
    assert len(blocks) == 48 and blocks["stored", "GPU"] == 2 and max(len(medium) for _, medium in blocks) == 32


def event(**changed: Any) -> bytes:
    """A batch of one good event and one with something changed; ``None`` leaves a field out."""
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
def test_what_cannot_be_is_counted_as_bad(world: World, payload: bytes) -> None:
    """All of its message, and none of its events."""
    world.publish(payload, batch(stored([1])))
    assert world.messages() == {"lost": 0, "bad": 1} and world.blocks() == {("stored", "GPU"): 1}


def test_an_engine_whose_events_are_others_is_down(world: World) -> None:
    """It says why, and nothing of what came; and is up again with its next good message."""
    world.publish(msgspec.msgpack.encode({"ts": 1.5, "events": "the prompt of a customer"}))
    why = "Expected `array`, got `object`; expected events of the KV cache, as vLLM and SGLang publish them"
    with pytest.raises(Unusable) as failed:
        world.collect()
    assert str(failed.value) == f"{world.publisher.endpoint}: none of what came could be taken (messages: 1); the last: {why}"
    world.publish(event(block_hashes=7))
    with pytest.raises(Unusable, match=r"\(messages: 2\); the last: block_hashes is no array; expected"):
        world.collect()
    world.publish(batch())
    assert world.messages() == {"lost": 0, "bad": 2}


def test_what_is_not_known_is_skipped(world: World) -> None:
    """Events of tomorrow, fields of tomorrow, more at the end."""
    world.publish(
        msgspec.msgpack.encode(
            [1, [{"type": "BlockPinned", "block_hashes": [1]}, {"type": "BlockRemoved", "block_hashes": [1], "new": {}}], 0, 5]
        )
    )
    assert world.blocks() == {("removed", ""): 1} and world.messages() == {"lost": 0, "bad": 0}


def test_an_endpoint_without_a_publisher_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the silence."""
    monkeypatch.setattr(zmq_subscriber, "_SILENT_S", 0.0)
    events = KvEvents("e", "tcp://127.0.0.1:9")
    with pytest.raises(Absent, match="nothing comes from tcp://127.0.0.1:9"):
        list(events.collect(NOW))
    events.close()


def hostile() -> st.SearchStrategy[bytes]:
    """Random bytes, batches with bytes changed, and events of random values under the right names."""
    values = st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=40), st.lists(st.integers(0, 2**64 - 1), max_size=20))
    kinds = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
    events = st.fixed_dictionaries({"type": kinds}, optional={"block_hashes": values, "medium": values, "token_ids": values})
    whole = batch(stored([1, 2], "GPU"), BlockRemoved([3], "CPU"))
    changed = st.builds(lambda at, byte: whole[:at] + bytes([byte]) + whole[at + 1 :], st.integers(0, len(whole) - 1), st.integers(0, 255))
    return st.one_of(st.binary(max_size=40), changed, st.lists(events, max_size=4).map(lambda each: msgspec.msgpack.encode([1.5, each])))


def test_nothing_that_comes_does_harm(lasting: World) -> None:
    """Whatever is published, a round raises nothing, counts only grow, and what is held is bounded."""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(hostile(), min_size=1, max_size=5))
    def check(payloads: list[bytes]) -> None:
        before = lasting.blocks()
        lasting.publish(*payloads, batch())
        after = lasting.blocks()
        assert all(after[key] >= count for key, count in before.items())
        assert len(after) <= 48 and sum(1 for _ in reachable(lasting.events)) < 2_000

    check()
