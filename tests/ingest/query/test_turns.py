"""Turns of statements: together or alone, in the order of arrival, also when some give up."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from legato_ingest.query.turns import Turns


class Run:
    """Statements that take their turns until each is released."""

    def __init__(self) -> None:
        self.turns, self.running, self.order = Turns(), list[str](), list[str]()
        self._released: dict[str, anyio.Event] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def take(self, name: str, must_be_alone: Callable[[], bool]) -> None:
        """Take a turn and keep it until released."""
        self._released[name] = anyio.Event()
        with anyio.CancelScope() as self._scopes[name]:
            async with self.turns.turn(must_be_alone):
                self.running.append(name)
                self.order.append(name)
                assert len(self.running) == 1 or not any(each.isupper() for each in self.running)
                try:
                    await self._released[name].wait()
                finally:
                    self.running.remove(name)

    def release(self, name: str) -> None:
        """Let a statement end."""
        self._released[name].set()

    def cancel(self, name: str) -> None:
        """Let the reader of a statement disconnect."""
        self._scopes[name].cancel()


def ran(steps: list[str], decide: Callable[[str], bool] = str.isupper) -> tuple[list[str], list[list[str]]]:
    """Carry the steps out, and return who ran after each.

    A letter begins, one of the upper case must be alone; `-` and a letter ends; `!` and a letter gives up.
    """

    async def run() -> tuple[list[str], list[list[str]]]:
        one, seen = Run(), list[list[str]]()
        async with anyio.create_task_group() as tasks:
            for step in steps:
                if step[0] == "-":
                    one.release(step[1])
                elif step[0] == "!":
                    one.cancel(step[1])
                else:
                    tasks.start_soon(one.take, step, lambda step=step: decide(step))
                await anyio.wait_all_tasks_blocked()
                seen.append(sorted(one.running))
            for released in one._released.values():
                released.set()
        assert one.turns._running == 0 and not one.turns._waiting
        return one.order, seen

    return anyio.run(run)


def test_one_that_must_be_alone_is_alone() -> None:
    """It waits for those that run; later ones wait for it, and then run together."""
    order, seen = ran(["a", "b", "C", "d", "e", "-a", "-b", "-C"])
    assert seen == [["a"], ["a", "b"], ["a", "b"], ["a", "b"], ["a", "b"], ["b"], ["C"], ["d", "e"]]
    assert order == list("abCde")


def test_one_that_gives_up_delays_no_other() -> None:
    """While it waits, and while it runs."""
    assert ran(["a", "B", "c", "!B", "-a"])[1] == [["a"], ["a"], ["a"], ["a", "c"], ["c"]]
    assert ran(["A", "b", "!A"])[1] == [["A"], ["A"], ["b"]]


def test_it_is_asked_when_its_turn_comes() -> None:
    """A statement that came before its tenant was under suspicion runs alone, too."""
    suspects = set[str]()

    def decide(name: str) -> bool:
        if name == "b":
            suspects.add("c")
        return name in suspects or name.isupper()

    assert ran(["A", "b", "c", "-A"], decide)[1] == [["A"], ["A"], ["A"], ["b"]]


@examples(200)
@given(st.lists(st.tuples(st.sampled_from("+-!"), st.integers(0, 25), st.booleans()), max_size=40))
def test_everyone_has_a_turn(chosen: list[tuple[str, int, bool]]) -> None:
    """In any order of arrivals, ends and disconnections: none runs beside one that is alone, and in the end none waits."""
    begun, steps = list[str](), list[str]()
    for kind, place, is_alone in chosen:
        letter = chr(ord("a") + len(begun) % 26)
        if kind == "+" and len(begun) < 26:
            begun.append(letter.upper() if is_alone else letter)
            steps.append(begun[-1])
        elif kind != "+" and begun:
            steps.append(kind + begun[place % len(begun)])
    ran(steps)
