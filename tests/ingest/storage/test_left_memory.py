"""When memory that calls have left is given back."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.storage.left_memory import LeftMemory

MB = 2**20


class Process:
    """A process with memory in use, by call, and memory that calls have left."""

    def __init__(self) -> None:
        self.in_use, self.left, self.given_back, self.now_s = dict[str, int](), 0, 0, 0.0
        self.memory = LeftMemory(lambda: (100 + sum(self.in_use.values()) + self.left) * MB, self.give_back, lambda: self.now_s)
        self._running = dict[str, contextlib.ExitStack]()

    def give_back(self) -> None:
        """Give back what is left."""
        self.left = 0
        self.given_back += 1

    def begin(self, name: str, megabytes: int) -> None:
        """Begin a call with so much memory; the names of reads are in lower case."""
        self._running[name] = contextlib.ExitStack()
        self._running[name].enter_context(self.memory.counted(is_read=name.islower()))
        self.in_use[name] = megabytes

    def end(self, name: str) -> None:
        """End a call: it leaves its memory."""
        self.left += self.in_use.pop(name)
        self._running.pop(name).close()


def test_a_read_leaves_little_to_the_next() -> None:
    """Alone, and as the last of several; what is small stays."""
    process = Process()
    for megabytes, given_back in ((63, 0), (500, 1), (10, 1)):
        process.begin("a", megabytes)
        process.end("a")
        assert process.given_back == given_back
    process.begin("a", 256)
    process.begin("b", 256)
    process.end("a")
    assert (process.left, process.given_back) == (0, 2)
    process.end("b")
    assert (process.left, process.given_back) == (0, 3)


def test_calls_beside_large_ones_give_nothing_back_again_and_again() -> None:
    """The memory in use of a call that runs long is not that of those that end."""
    process = Process()
    process.begin("A", 1_000)
    process.begin("c", 0)
    for _ in range(100):
        process.begin("b", 1)
        process.end("b")
    assert process.given_back <= 2
    process.end("c")
    process.end("A")
    assert process.left == 0


def test_a_large_rest_beside_others_stays_for_a_second() -> None:
    """When one ends, it is not known what another has in use; later it is asked again."""
    process = Process()
    process.begin("a", 100)
    process.begin("b", 3_700)
    process.end("a")
    process.begin("c", 1)
    process.end("b")
    assert process.left == 3_700
    process.now_s = 1.0
    process.begin("d", 1)
    process.end("c")
    assert process.left == 0


def test_an_error_costs_no_answer() -> None:
    """What cannot be given back now is given back later."""

    def fail() -> None:
        raise OSError("no")

    memory = LeftMemory(iter([100 * MB, 900 * MB, 900 * MB]).__next__, fail)
    with memory.counted(is_read=True):
        pass


@given(st.lists(st.tuples(st.sampled_from("abcAB"), st.integers(0, 2_000)), max_size=60))
def test_little_is_left_when_nothing_runs(steps: list[tuple[str, int]]) -> None:
    """After any calls: less than the last one may leave, above what was left before."""
    process = Process()
    for name, megabytes in steps:
        if name in process.in_use:
            process.end(name)
        else:
            process.begin(name, megabytes)
    last = ""
    for last in list(process.in_use):
        process.end(last)
    if last:
        assert process.left < (64 if last.islower() else 256)
