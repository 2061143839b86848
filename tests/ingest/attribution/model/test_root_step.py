"""The root-cause step of a stall, and the requests behind it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.builders.attribution import MS, charged_steps, joined, verdict
from legato_ingest.attribution.model.joined_steps import JoinedSteps
from legato_ingest.attribution.model.root_step import prompts_in_steps, responses_of, root_steps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import CORE

BASE = {"base": 10}


def long_and_longer(cause: str) -> JoinedSteps:
    """Return four steps, of which the second and the third have a part of this cause."""
    return joined(charged_steps(BASE, {"base": 10, cause: 100}, {"base": 10, cause: 200}, BASE))


@pytest.mark.parametrize("cause", CORE)
def test_the_longest_step_of_the_cause_is_the_root(cause: str) -> None:
    """Among the steps that the gap is aligned with; the result has the cause's part in it."""
    roots = root_steps(long_and_longer(cause), verdict(cause, {cause: 300}, step_first=0, step_last=3))
    assert (roots.step.tolist(), roots.ns.tolist()) == ([2], [200 * MS])
    first = root_steps(long_and_longer(cause), verdict(cause, {cause: 100}, step_first=0, step_last=1))
    assert first.step.tolist() == [1]


def test_a_preempted_streams_root_is_its_preemption() -> None:
    """However long other steps were; the part is the complete time."""
    found = root_steps(long_and_longer("kv_pressure"), verdict("kv_pressure", {"kv_pressure": 330}, step_first=1, step_last=3, preempted=1))
    assert (found.step.tolist(), found.ns.tolist()) == ([1], [330 * MS])


def test_the_front_ends_root_is_the_step_that_it_did_not_send() -> None:
    """The last step that had ended when the front end paused."""
    found = root_steps(long_and_longer("host"), verdict("front_end", {"front_end": 400}, step_first=2, step_last=2))
    assert (found.step.tolist(), found.ns.tolist()) == ([2], [400 * MS])


@pytest.mark.parametrize("cause", ["connection", "mixed", "generation"])
def test_other_causes_have_no_root(cause: str) -> None:
    """A stall without steps has none either."""
    assert root_steps(long_and_longer("host"), verdict(cause, {}, step_first=1, step_last=2)).step.tolist() == [-1]
    assert root_steps(joined(None), verdict("host", {"host": 1})).step.tolist() == [-1]


def prefilled(*prompt_steps: int) -> JoinedSteps:
    """Return ten steps with prefill in these."""
    return joined(charged_steps(*({"base": 10, "scheduling": 50} if n in prompt_steps else BASE for n in range(10))))


def test_a_prompt_is_in_all_steps_up_to_its_first_token() -> None:
    """Two requests got their first tokens from step 4, the last of three with prefill; later first tokens belong to another prompt."""
    steps = prefilled(2, 3, 4, 7)
    first_tokens = [(4, "a"), (4, "b"), (9, "c"), (1, "d")]
    assert prompts_in_steps(steps, [2, 4, 7], first_tokens) == {2: ["a", "b"], 4: ["a", "b"]}
    assert prompts_in_steps(steps, [], []) == {} and prompts_in_steps(steps, [2], []) == {}


def test_a_prompt_is_of_its_engine() -> None:
    """The last step of one engine and the first of the next have prefill. The first token of the next engine is of its prompt alone."""
    prompt = charged_steps({"base": 10, "scheduling": 50})
    assert prompts_in_steps(JoinedSteps.of([prompt, prompt], [1, 1]), [0, 1], [(1, "other")]) == {1: ["other"]}


def test_a_step_with_many_requests_names_sixteen_of_them() -> None:
    """Each stall of the step repeats them: 4,000 short requests made 1.2 million ids of 300 stalls."""
    many = [f"request-{number:03}" for number in reversed(range(50))]
    (names,) = prompts_in_steps(prefilled(2, 3, 4), [4], [*((4, name) for name in many), (5, "later")]).values()
    assert names == [f"request-{number:03}" for number in range(16)]
    rows = [verdict("kv_pressure", {}, step_first=5, step_last=8, preempted=5) for _ in many] + [
        verdict("kv_pressure", {}, step_first=8, step_last=8)
    ]
    both = Verdicts.joined(rows, [0] * len(rows))
    found = responses_of(np.array([50]), np.array([8]), both, [*many, "other"], prefilled(), [])
    assert [len(each) for each in found] == [16]


def test_the_time_to_name_requests_grows_with_their_number() -> None:
    """Not with its square: 8,000 steps with a request each took 7 s."""
    names = [(number, f"{number}") for number in range(12_000)]
    many: Any = SimpleNamespace(prefill_tokens=np.ones(len(names)), group=np.zeros(len(names)))
    started = time.process_time()
    assert len(prompts_in_steps(many, [step for step, _ in names], names)) == len(names)
    assert time.process_time() - started < 2


def test_responses_are_those_prefilled_recomputed_or_the_stream_itself() -> None:
    """One gap of each kind."""
    steps = prefilled(2, 3, 4, 7)
    rows = np.array([0])

    def responses(root: int, cause: str, own: str = "me", **fields: int) -> list[str]:
        found = responses_of(rows, np.array([root]), verdict(cause, {}, **fields), [own], steps, [(4, "a")])
        return found[0]

    assert responses(3, "scheduling", step_first=3, step_last=3) == ["a"]
    assert responses(-1, "scheduling") == [] and responses(7, "scheduling") == []
    assert responses(5, "kv_pressure", step_first=5, step_last=8, preempted=5) == ["me"]
    assert responses(5, "kv_pressure", "", step_first=5, step_last=8, preempted=5) == []
    assert responses(3, "host", step_first=3, step_last=3) == []


def test_others_waited_for_the_recompute_of_a_preempted_stream() -> None:
    """The preempted stream's stall ended with step 8, the root-cause step of the other stream's stall."""
    one = verdict("kv_pressure", {}, step_first=5, step_last=8, preempted=5)
    other = verdict("kv_pressure", {}, step_first=8, step_last=8)
    both = Verdicts.joined([one, other], [0, 0])
    found = responses_of(np.array([0, 1]), np.array([5, 8]), both, ["victim", "other"], prefilled(), [])
    assert found == [["victim"], ["victim"]]
