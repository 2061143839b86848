"""A subscription to a real ZMQ publisher: every message is taken or counted on arrival, and none ends the thread."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from helpers.servers.publisher import Publisher, reachable
from helpers.servers.waiting import until
from legato_gpu_agent.collectors import zmq_subscriber
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.decode_errors import DecodeError, safe_reason
from legato_gpu_agent.collectors.zmq_subscriber import BYTES_MAX, ZmqSubscriber

END = b"the last one"


class Taken:
    """The messages that a subscriber passed on."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []

    def __call__(self, arrived_ns: int, payload: bytes) -> None:
        self.messages.append((arrived_ns, payload))

    @property
    def payloads(self) -> list[bytes]:
        """Return the payloads in order."""
        return [payload for _, payload in self.messages]


@contextmanager
def listening(endpoint: str, take: Callable[[int, bytes], None]) -> Iterator[ZmqSubscriber]:
    """Create a subscriber that receives."""
    subscribed = ZmqSubscriber(endpoint, take)
    try:
        subscribed.listen()
        yield subscribed
    finally:
        subscribed.close()


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """Both kinds of sockets that engines use."""
    return "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path / 'kv.sock'}"


def test_messages_are_passed_on_at_once(endpoint: str) -> None:
    """In order, each once, for any topic, with a time between its sending and now."""
    taken = Taken()
    with Publisher(endpoint) as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        began_ns = time.time_ns()
        for number in range(500):
            publisher.publish(number, b"%d" % number, b"topic" if number % 2 else b"")
        until(lambda: len(taken.messages) == 500)
        ended_ns = time.time_ns()
        assert taken.payloads == [b"%d" % number for number in range(500)]
        stamps = [arrived_ns for arrived_ns, _ in taken.messages]
        assert stamps == sorted(stamps) and began_ns <= stamps[0] <= stamps[-1] <= ended_ns
        assert (subscribed.lost, subscribed.bad) == (0, 0)


def test_missing_numbers_count_as_lost() -> None:
    """The first number is no loss; a number that goes back, or jumps implausibly, is a restarted publisher."""
    taken = Taken()
    with Publisher() as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        lost = list[int]()
        for number in (7, 8, 11, 12, 0, 1, 4, 2**62, 2**62 + 2, 2**64 - 1):
            publisher.publish(number, b"")
            until(lambda: len(taken.messages) == len(lost) + 1)
            lost.append(subscribed.lost)
        assert lost == [0, 0, 2, 2, 2, 2, 4, 4, 5, 5] and subscribed.bad == 0


@pytest.mark.parametrize(
    "frames",
    [
        (b"only one",),
        (b"", (1).to_bytes(8, "big")),
        (b"", (1).to_bytes(8, "big"), b"x", b"one more"),
        (b"", (1).to_bytes(4, "big"), b"x"),
        (b"", b"", b"x"),
        tuple(b"" for _ in range(1_000)),
    ],
)
def test_other_frames_are_bad(frames: tuple[bytes, ...]) -> None:
    """Frames other than topic, number and payload are counted, and the next message is taken."""
    taken = Taken()
    with Publisher() as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        publisher.send(*frames)
        publisher.publish(1, END)
        until(lambda: taken.payloads == [END])
        assert (subscribed.lost, subscribed.bad) == (0, 1)


def test_a_huge_message_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound it is not received; the connection is opened again, and the number counts as lost."""
    # A busy machine takes more than half a second to transfer a message of this length, and the connection is silent meanwhile.
    monkeypatch.setattr(zmq_subscriber, "_REOPEN_S", 3.0)
    taken = Taken()
    with Publisher() as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        publisher.publish(0, b"x" * BYTES_MAX)
        until(lambda: len(taken.messages) == 1)
        publisher.publish(1, b"x" * (BYTES_MAX + 1))
        publisher.wait()
        publisher.publish(2, END)
        until(lambda: len(taken.messages) == 2)
        assert [len(payload) for payload in taken.payloads] == [BYTES_MAX, len(END)] and subscribed.lost == 1


def test_a_publisher_comes_back(endpoint: str) -> None:
    """One that vanishes is silent; its successor at the same endpoint is received, without losses."""
    taken = Taken()
    with Publisher(endpoint) as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        publisher.publish(41, b"before")
        until(lambda: taken.payloads == [b"before"])
        publisher.close()
        subscribed.listen()
        with Publisher(publisher.endpoint) as successor:
            successor.wait()
            successor.publish(0, b"after")
            until(lambda: taken.payloads == [b"before", b"after"])
        assert (subscribed.lost, subscribed.bad) == (0, 0)


def test_a_silent_publisher_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the silence and not before. It stays subscribed, and is available again with its next message."""
    taken = Taken()
    with Publisher() as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        subscribed.listen()
        monkeypatch.setattr(zmq_subscriber, "_SILENT_S", 0.0)
        with pytest.raises(NotAvailable, match=r"no message from tcp://.* does the engine publish\?"):
            subscribed.listen()
        publisher.publish(0, b"at last")
        until(lambda: taken.payloads == [b"at last"])
        monkeypatch.setattr(zmq_subscriber, "_SILENT_S", 30.0)
        subscribed.listen()


def test_the_subscriber_may_start_first(endpoint: str, tmp_path: pathlib.Path) -> None:
    """Before its publisher."""
    taken = Taken()
    with Publisher(endpoint) as publisher:
        there = publisher.endpoint
    with listening(there, taken), Publisher(there) as late:
        late.wait()
        late.publish(0, b"hello")
        until(lambda: taken.payloads == [b"hello"])


@pytest.mark.parametrize("where", ["", "127.0.0.1:5557", "tcp://", "tcp://127.0.0.1", "http://127.0.0.1:5557", "ipc://" + "x" * 200])
def test_an_invalid_endpoint_is_not_available(where: str) -> None:
    """At each call, and no socket or thread remains."""
    subscribed, threads = ZmqSubscriber(where, Taken()), threading.active_count()
    for _ in range(3):
        with pytest.raises(NotAvailable, match="cannot connect to"):
            subscribed.listen()
    assert threading.active_count() == threads
    subscribed.close()


@pytest.mark.parametrize("error", [ValueError("no"), RecursionError("deep"), KeyError("x"), MemoryError("full")])
def test_a_message_that_cannot_be_taken_ends_nothing(error: Exception) -> None:
    """For any exception it is a bad message, and the next one is taken."""
    taken = Taken()

    def take(arrived_ns: int, payload: bytes) -> None:
        if payload != END:
            raise error
        taken(arrived_ns, payload)

    with Publisher() as publisher, listening(publisher.endpoint, take) as subscribed:
        publisher.wait()
        publisher.publish(0, b"a bad one")
        publisher.publish(1, END)
        until(lambda: taken.payloads == [END])
        assert (subscribed.lost, subscribed.bad) == (0, 1)


def test_a_publisher_with_only_bad_messages_fails() -> None:
    """The error names their number, the last reason and the expected messages; receiving continues, and a good message ends it."""
    taken = Taken()

    def take(arrived_ns: int, payload: bytes) -> None:
        if payload.startswith(b"own"):
            raise DecodeError("a text of this test")
        if payload != END:
            raise KeyError(payload)
        taken(arrived_ns, payload)

    with Publisher() as publisher, listening(publisher.endpoint, take) as subscribed:

        def arrived(*frames: bytes) -> None:
            before = subscribed.bad + subscribed.taken
            publisher.send(*frames)
            until(lambda: subscribed.bad + subscribed.taken == before + 1)

        def why() -> str:
            with pytest.raises(DecodeError, match=r"^tcp://.*: no messages could be decoded") as failed:
                subscribed.listen()
            return str(failed.value).partition(" could be decoded ")[2]

        publisher.wait()
        number, expected = bytes(8), "expected topic, number (8 bytes) and payload"
        arrived(b"", number, b"own")
        assert [why(), why()] == [f"(1 received); the last: a text of this test; {expected}"] * 2
        arrived(b"", number, b"the prompt of a customer")
        assert why() == f"(2 received); the last: KeyError; {expected}"
        arrived(b"only one")
        assert why() == f"(3 received); the last: frames (1) other than topic, number (8 bytes) and payload; {expected}"
        arrived(b"", number, END)
        arrived(b"only one")
        subscribed.listen()
        subscribed.listen()
        arrived(b"only one")
        # It was understood before, so that message is reported, and nothing while no other arrives.
        assert why().startswith("(1 received)")
        subscribed.listen()
        arrived(b"", number, END)
        subscribed.listen()
        assert (subscribed.bad, subscribed.taken) == (5, 2)


MARK = "prompt"


class Part(msgspec.Struct):
    """Fields of all kinds."""

    number: int = 0
    some: list[float] = []
    named: dict[str, int] = {}
    text: str | None = None


def nested() -> st.SearchStrategy[object]:
    """Secret values and names, in place of other types."""
    return st.recursive(
        st.sampled_from([MARK, MARK.encode(), 1, 1.5, None]),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*Part.__struct_fields__, MARK]), inner, max_size=4)
        ),
        max_leaves=8,
    )


@given(value=nested(), kind=st.sampled_from(["json", "msgpack"]), at=st.integers(0, 200))
def test_a_reason_quotes_nothing(value: object, kind: str, at: int) -> None:
    """For any contents and any truncation, msgspec names types, fields of the schema and positions only."""
    encode, decode = (msgspec.json.encode, msgspec.json.decode) if kind == "json" else (msgspec.msgpack.encode, msgspec.msgpack.decode)
    whole = encode(value)
    for payload in (whole, whole[:at], whole[:at] + b"\xff" + whole[at + 1 :]):
        try:
            decode(payload, type=Part)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            assert MARK not in safe_reason(error) and "\n" not in safe_reason(error) and len(safe_reason(error)) < 150


def test_no_message_is_kept() -> None:
    """Only the callback gets it."""
    seen = []
    with Publisher() as publisher, listening(publisher.endpoint, lambda _, payload: seen.append(len(payload))) as subscribed:
        publisher.wait()
        for number in range(100):
            publisher.publish(number, b"a prompt, say " * 100)
        until(lambda: len(seen) == 100)
        assert not [each for each in reachable(subscribed) if isinstance(each, bytes) and b"a prompt" in each]


def test_close_ends_the_thread() -> None:
    """It may be called again, or before the start."""
    threads = threading.active_count()
    with Publisher() as publisher:
        with listening(publisher.endpoint, Taken()) as subscribed:
            assert threading.active_count() == threads + 1
        subscribed.close()
        assert threading.active_count() == threads
    ZmqSubscriber("tcp://127.0.0.1:1", Taken()).close()


def test_a_process_with_a_subscriber_may_end() -> None:
    """Without a call of close."""
    code = "from legato_gpu_agent.collectors.zmq_subscriber import ZmqSubscriber as S; S('tcp://127.0.0.1:9', print).listen()"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=60, capture_output=True).returncode == 0


def test_random_frames_are_counted() -> None:
    """For any frames each message is taken or bad, and the last one is taken."""
    taken = Taken()
    with Publisher() as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()

        @examples(30)
        @given(st.lists(st.lists(st.binary(max_size=12), min_size=1, max_size=4), max_size=5))
        def check(messages: list[list[bytes]]) -> None:
            bad = subscribed.bad
            taken.messages.clear()
            for frames in messages:
                publisher.send(*frames)
            publisher.publish(0, END)
            until(lambda: taken.payloads[-1:] == [END])
            good = sum(len(frames) == 3 and len(frames[1]) == 8 for frames in messages)
            assert len(taken.messages) == good + 1 and subscribed.bad == bad + len(messages) - good

        check()
