"""Turns of statements: together or alone, fair to those that run together and among those that run alone, also when some give up."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from legato_ingest.query.turns import Turns

MOST = 3


class Run:
    """Statements that take their turns until each is released. The first letter of a name is its tenant; upper case must be alone."""

    def __init__(self, decide: Callable[[str], bool]) -> None:
        self.now_s = 0.0
        self.turns, self.running, self.order = Turns(MOST, lambda: self.now_s), list[str](), list[str]()
        self._decide = decide
        self._released: dict[str, anyio.Event] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def take(self, name: str) -> None:
        """Take a turn and keep it until released."""
        self._released[name] = anyio.Event()
        with anyio.CancelScope() as self._scopes[name]:
            async with self.turns.turn(name[0], lambda: self._decide(name)):
                self.running.append(name)
                self.order.append(name)
                assert len(self.running) <= MOST
                assert len(self.running) == 1 or not any(each[0].isupper() for each in self.running)
                try:
                    await self._released[name].wait()
                finally:
                    self.running.remove(name)

    def carry_out(self, tasks: anyio.abc.TaskGroup, step: str) -> None:
        """Begin a statement; `-` and a name ends one, `!` and a name cancels one, `+` and a number lets so many seconds pass."""
        if step[0] == "-":
            self._released[step[1:]].set()
        elif step[0] == "!":
            self._scopes[step[1:]].cancel()
        elif step[0] == "+":
            self.now_s += float(step[1:])
        else:
            tasks.start_soon(self.take, step)

    def release(self) -> None:
        """Let all end, also those that have not begun."""
        for each in self._released.values():
            each.set()


async def _settled() -> None:
    """Let all tasks run until they wait. (``anyio.wait_all_tasks_blocked`` sleeps for 0.1 s whenever one runs.)"""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


def ran(steps: str | list[str], decide: Callable[[str], bool] = lambda name: name[0].isupper()) -> tuple[list[str], list[list[str]]]:
    """Carry the steps out. Return who had a turn, in order, and who ran after each step."""

    async def run() -> tuple[list[str], list[list[str]]]:
        one, seen = Run(decide), list[list[str]]()
        async with anyio.create_task_group() as tasks:
            for step in steps.split() if isinstance(steps, str) else steps:
                one.carry_out(tasks, step)
                await _settled()
                seen.append(sorted(one.running))
            one.release()
        assert one.turns._running == 0 and not one.turns._waiting and one.turns._stopped_s is None
        return one.order, seen

    return anyio.run(run)


def test_so_many_run_together() -> None:
    """In the order of arrival."""
    assert ran("a b c d e -b -a")[1][-3:] == [["a", "b", "c"], ["a", "c", "d"], ["c", "d", "e"]]


def test_one_that_must_be_alone_is_alone() -> None:
    """It waits for those that run; later ones wait for it, and then run together."""
    order, seen = ran("a b C d e -a -b +1 -C")
    assert seen == [["a"], ["a", "b"], ["a", "b"], ["a", "b"], ["a", "b"], ["b"], ["C"], ["C"], ["d", "e"]]
    assert order == list("abCde")


def test_the_others_have_as_much_time_as_one_that_ran_alone() -> None:
    """Also those that come later. If none of them waits, the next one that must be alone runs at once."""
    _, seen = ran("A1 A2 +8 b -A1 c -b d +7 -c e +1 f -d -e")
    assert seen[4:] == [["b"], ["b", "c"], ["c"], ["c", "d"], ["c", "d"], ["d"], ["d", "e"], ["d", "e"], ["d", "e"], ["e"], ["A2"]]
    assert ran("A1 A2 +8 -A1")[1][-1] == ["A2"]


def test_of_those_that_must_be_alone_the_one_with_the_least_time_is_next() -> None:
    """A tenant with long statements does not delay one with short ones: only the one that runs."""
    order, _ = ran("A1 +8 A2 B1 -A1 +.1 B2 -B1 +.1 B3 -B2 +.1 -B3")
    assert order == ["A1", "B1", "B2", "B3", "A2"]
    order, _ = ran("A1 +8 -A1 B1 +4 -B1 b1 +300 A2 B2 -b1")
    assert order[:4] == ["A1", "B1", "b1", "B2"], "what was long ago counts little, but it counts"


def test_the_time_in_which_no_other_may_begin_counts() -> None:
    """Of a statement that must be alone and waits for a long one, the others pay for the wait, too: they have turns for as long."""
    order, seen = ran("a +1 B1 +9 c B2 -a +1 -B1 +9.5 d -c +.5 e -d")
    assert order == ["a", "B1", "c", "d", "B2", "e"] and seen[-5:] == [["c", "d"], ["d"], ["d"], ["d"], ["B2"]]


def test_one_that_gives_up_delays_no_other() -> None:
    """While it waits, and while it runs."""
    assert ran("a B c !B -a")[1] == [["a"], ["a"], ["a"], ["a", "c"], ["c"]]
    assert ran("A b !A")[1] == [["A"], ["A"], ["b"]]


def test_the_wait_of_one_that_gave_up_is_not_that_of_a_later_one() -> None:
    """The others have turns for as long as the later one waited and ran, here two seconds."""
    assert ran("a +1 B !B -a +499 C +1 d D -C +3 e -d")[1][-2:] == [["d"], ["D"]]


def test_it_is_asked_until_its_turn_comes() -> None:
    """A statement that came before its tenant was under suspicion runs alone, too."""
    suspects = {"A"}

    def decide(name: str) -> bool:
        return name in suspects

    async def run() -> list[list[str]]:
        one, seen = Run(decide), list[list[str]]()
        async with anyio.create_task_group() as tasks:
            for step in ("A", "b", "c", "-A"):
                if step == "-A":
                    suspects.add("c")
                one.carry_out(tasks, step)
                await _settled()
                seen.append(sorted(one.running))
            one.release()
        return seen

    assert anyio.run(run) == [["A"], ["A"], ["A"], ["c"]]


@examples(200)
@given(st.lists(st.tuples(st.sampled_from("sse-!+"), st.sampled_from("abcAB"), st.integers(0, 60)), max_size=50))
def test_everyone_has_a_turn(chosen: list[tuple[str, str, int]]) -> None:
    """In any order of arrivals, ends and disconnections: none runs beside one that is alone, and in the end none waits."""
    begun, steps = list[str](), list[str]()
    for kind, tenant, number in chosen:
        if kind == "+":
            steps.append(f"+{number}")
        elif kind in "-!" and begun:
            steps.append(kind + begun[number % len(begun)])
        elif kind in "se":
            begun.append(f"{tenant}{len(begun)}")
            steps.append(begun[-1])
    ran(steps)
