"""Listening to a real ZMQ publisher: every message is taken or counted, the moment it comes, and nothing that comes ends it."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.servers.publisher import Publisher, reachable
from helpers.servers.waiting import until
from legato_gpu_agent.collectors import Absent, zmq_subscriber
from legato_gpu_agent.collectors.decode_errors import Unusable, reason_of
from legato_gpu_agent.collectors.zmq_subscriber import BYTES_MAX, Subscription

END = b"the last one"


class Taken:
    """What a subscription handed on."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []

    def __call__(self, came_ns: int, payload: bytes) -> None:
        self.messages.append((came_ns, payload))

    @property
    def payloads(self) -> list[bytes]:
        """In their order."""
        return [payload for _, payload in self.messages]


@contextmanager
def listening(endpoint: str, take: Callable[[int, bytes], None]) -> Iterator[Subscription]:
    """A subscription that listens."""
    subscribed = Subscription(endpoint, take)
    try:
        subscribed.listen()
        yield subscribed
    finally:
        subscribed.close()


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """Both ways that engines publish."""
    return "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path / 'kv.sock'}"


def test_messages_are_taken_as_they_come(endpoint: str) -> None:
    """In order, each once, whatever its topic, and stamped between its sending and now."""
    taken = Taken()
    with Publisher(endpoint) as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        began_ns = time.time_ns()
        for number in range(500):
            publisher.publish(number, b"%d" % number, b"topic" if number % 2 else b"")
        until(lambda: len(taken.messages) == 500)
        ended_ns = time.time_ns()
        assert taken.payloads == [b"%d" % number for number in range(500)]
        stamps = [came_ns for came_ns, _ in taken.messages]
        assert stamps == sorted(stamps) and began_ns <= stamps[0] <= stamps[-1] <= ended_ns
        assert (subscribed.lost, subscribed.bad) == (0, 0)


def test_numbers_that_are_left_out_were_lost() -> None:
    """The first number says nothing; a number that goes back, or that nobody reaches, is a publisher that began anew."""
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
    """What is not topic, number and payload is counted, and the next message is taken."""
    taken = Taken()
    with Publisher() as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        publisher.send(*frames)
        publisher.publish(1, END)
        until(lambda: taken.payloads == [END])
        assert (subscribed.lost, subscribed.bad) == (0, 1)


def test_a_huge_message_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its bound it is not taken in; the connection is made anew, and its number was lost."""
    monkeypatch.setattr(zmq_subscriber, "_REOPEN_S", 0.5)
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
    """One that vanishes is one that says nothing; its successor at the same endpoint is heard, and nothing was lost of it."""
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


def test_a_publisher_that_says_nothing_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the silence and not before; it is listened to all the same, and is there again when it speaks."""
    taken = Taken()
    with Publisher() as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()
        subscribed.listen()
        monkeypatch.setattr(zmq_subscriber, "_SILENT_S", 0.0)
        with pytest.raises(Absent, match=r"nothing comes from tcp://.* does the engine publish\?"):
            subscribed.listen()
        publisher.publish(0, b"at last")
        until(lambda: taken.payloads == [b"at last"])
        monkeypatch.setattr(zmq_subscriber, "_SILENT_S", 30.0)
        subscribed.listen()


def test_nobody_has_to_be_there_first(endpoint: str, tmp_path: pathlib.Path) -> None:
    """It may begin before its publisher."""
    taken = Taken()
    with Publisher(endpoint) as publisher:
        there = publisher.endpoint
    with listening(there, taken), Publisher(there) as late:
        late.wait()
        late.publish(0, b"hello")
        until(lambda: taken.payloads == [b"hello"])


@pytest.mark.parametrize("where", ["", "127.0.0.1:5557", "tcp://", "tcp://127.0.0.1", "http://127.0.0.1:5557", "ipc://" + "x" * 200])
def test_what_is_no_endpoint_is_absent(where: str) -> None:
    """As often as it is asked, and without a socket or a thread that stays."""
    subscribed, threads = Subscription(where, Taken()), threading.active_count()
    for _ in range(3):
        with pytest.raises(Absent, match="is no endpoint to connect to"):
            subscribed.listen()
    assert threading.active_count() == threads
    subscribed.close()


@pytest.mark.parametrize("error", [ValueError("no"), RecursionError("deep"), KeyError("x"), MemoryError("full")])
def test_a_message_that_cannot_be_taken_ends_nothing(error: Exception) -> None:
    """Whatever its taker raises, it is a bad message, and the next one is taken."""
    taken = Taken()

    def take(came_ns: int, payload: bytes) -> None:
        if payload != END:
            raise error
        taken(came_ns, payload)

    with Publisher() as publisher, listening(publisher.endpoint, take) as subscribed:
        publisher.wait()
        publisher.publish(0, b"a bad one")
        publisher.publish(1, END)
        until(lambda: taken.payloads == [END])
        assert (subscribed.lost, subscribed.bad) == (0, 1)


def test_a_publisher_of_which_nothing_can_be_taken_fails() -> None:
    """It says how many came, why the last was bad and what was expected; it listens on, and a good message mends it."""
    taken = Taken()

    def take(came_ns: int, payload: bytes) -> None:
        if payload.startswith(b"own"):
            raise Unusable("words of ours")
        if payload != END:
            raise KeyError(payload)
        taken(came_ns, payload)

    with Publisher() as publisher, listening(publisher.endpoint, take) as subscribed:

        def came(*frames: bytes) -> None:
            before = subscribed.bad + subscribed.taken
            publisher.send(*frames)
            until(lambda: subscribed.bad + subscribed.taken == before + 1)

        def why() -> str:
            with pytest.raises(Unusable, match=r"^tcp://.*: none of what came could be taken") as failed:
                subscribed.listen()
            return str(failed.value).partition(" could be taken ")[2]

        publisher.wait()
        number, expected = bytes(8), "expected topic, number (8 bytes) and payload"
        came(b"", number, b"own")
        assert [why(), why()] == [f"(messages: 1); the last: words of ours; {expected}"] * 2
        came(b"", number, b"the prompt of a customer")
        assert why() == f"(messages: 2); the last: KeyError; {expected}"
        came(b"only one")
        assert why() == f"(messages: 3); the last: frames (1) that are not topic, number (8 bytes) and payload; {expected}"
        came(b"", number, END)
        came(b"only one")
        subscribed.listen()
        subscribed.listen()
        came(b"only one")
        # It was understood before: it is said of that message, and not as long as nothing else comes.
        assert why().startswith("(messages: 1)")
        subscribed.listen()
        came(b"", number, END)
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
    """Values and names that hold what nobody may see, where other things belong."""
    return st.recursive(
        st.sampled_from([MARK, MARK.encode(), 1, 1.5, None]),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*Part.__struct_fields__, MARK]), inner, max_size=4)
        ),
        max_leaves=8,
    )


@settings(max_examples=200, deadline=None)
@given(value=nested(), kind=st.sampled_from(["json", "msgpack"]), at=st.integers(0, 200))
def test_a_reason_holds_nothing_of_what_came(value: object, kind: str, at: int) -> None:
    """Whatever it holds and wherever it is cut: what msgspec says names types, our fields and places alone."""
    encode, decode = (msgspec.json.encode, msgspec.json.decode) if kind == "json" else (msgspec.msgpack.encode, msgspec.msgpack.decode)
    whole = encode(value)
    for payload in (whole, whole[:at], whole[:at] + b"\xff" + whole[at + 1 :]):
        try:
            decode(payload, type=Part)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            assert MARK not in reason_of(error) and "\n" not in reason_of(error) and len(reason_of(error)) < 150


def test_nothing_is_kept_of_what_came() -> None:
    """A message is its taker's alone."""
    seen = []
    with Publisher() as publisher, listening(publisher.endpoint, lambda _, payload: seen.append(len(payload))) as subscribed:
        publisher.wait()
        for number in range(100):
            publisher.publish(number, b"a prompt, say " * 100)
        until(lambda: len(seen) == 100)
        assert not [each for each in reachable(subscribed) if isinstance(each, bytes) and b"a prompt" in each]


def test_close_ends_it() -> None:
    """Its thread is over, and it may be closed again, or before it began."""
    threads = threading.active_count()
    with Publisher() as publisher:
        with listening(publisher.endpoint, Taken()) as subscribed:
            assert threading.active_count() == threads + 1
        subscribed.close()
        assert threading.active_count() == threads
    Subscription("tcp://127.0.0.1:1", Taken()).close()


def test_a_process_that_listens_may_end() -> None:
    """Nobody has to close it for that."""
    code = "from legato_gpu_agent.collectors.zmq_subscriber import Subscription as S; S('tcp://127.0.0.1:9', print).listen()"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=60, capture_output=True).returncode == 0


def test_random_frames_are_counted() -> None:
    """Whatever the frames, each message is taken or bad, and the last is taken."""
    taken = Taken()
    with Publisher() as publisher, listening(publisher.endpoint, taken) as subscribed:
        publisher.wait()

        @settings(max_examples=60, deadline=None)
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
