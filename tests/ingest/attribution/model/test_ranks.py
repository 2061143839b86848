"""Other ranks of a server: their work counts where the steps of the ranks end together, and leaves a doubt where that is not known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.builders.attribution import MS
from helpers.builders.world import World
from legato_ingest.attribution.model.ranks import Rank, Work
from legato_ingest.attribution.model.step_model import charge_steps, step_ends
from legato_ingest.attribution.model.steps import ChargedSteps, Steps

# A prompt on each of the two ranks lengthens the steps of both by 0.2 ms a token.
OWN = {step: 600 for step in range(20, 380, 40)}
OTHER = {step: 600 for step in range(30, 380, 40)}
EXTRA = 120 * MS


def rank(steps: Steps) -> Rank:
    """Return the rank with these recorded steps."""
    return Rank.of(steps, step_ends(steps))


def together() -> tuple[Steps, Steps]:
    """Return the steps of two ranks that wait for each other; the second is recorded 0.3 ms later."""
    own = World(prefill=OWN, slow=dict.fromkeys(OTHER, EXTRA)).records()
    prefill = np.array([float(OTHER.get(step, 0)) for step in range(400)])
    other = replace(own, recorded_ns=own.recorded_ns + 300_000, prefill_tokens=prefill, prefill_requests=(prefill > 0).astype(float))
    return own, other


def host_ms(steps: ChargedSteps, at: Collection[int]) -> NDArray[np.float64]:
    """Return the part of the host in these steps, in ms."""
    return steps.parts.host[list(at)] / MS


def test_a_prompt_on_another_rank_is_scheduling_where_ranks_wait_for_each_other() -> None:
    """The step has the work of the rank with the most work, so the fitted cost is that of both ranks' prompts."""
    own, other = together()
    charged = charge_steps(own, ranks=[rank(other)])
    assert (host_ms(charged, OTHER) < 5).all() and (charged.parts.scheduling[list(OTHER)] > 100 * MS).all()
    assert np.flatnonzero(charged.awaited).tolist() == sorted(OTHER) and not charged.unsure.any()
    assert charged.prefill_tokens[list(OTHER)].sum() == 0 and charged.work_steps == len(OWN) + len(OTHER)
    alone = charge_steps(own)
    assert (host_ms(alone, OTHER) > 100).all() and not alone.awaited.any()


def test_recompute_on_another_rank_is_kv_pressure() -> None:
    """The engine counts it as decode tokens."""
    own, other = together()
    recompute = replace(other, prefill_tokens=np.zeros(400), decode_tokens=other.decode_tokens + other.prefill_tokens)
    charged = charge_steps(own, ranks=[rank(recompute)])
    assert (charged.parts.kv_pressure[list(OTHER)] > 100 * MS).all() and (charged.parts.scheduling[list(OWN)] > 100 * MS).all()


def test_a_rank_that_begins_to_work_has_a_first_step_without_a_duration() -> None:
    """Its end is then the time of its record. Between its prompts the rank is idle and records nothing."""
    own, other = together()
    busy = np.concatenate([np.arange(200), np.arange(310, 400)])
    fields = {name: getattr(other, name)[busy] for name in Steps.__dataclass_fields__}
    fields["interval_ns"] = np.where(busy == 310, np.nan, fields["interval_ns"])
    fields["number"] = np.arange(len(busy))
    charged = charge_steps(own, ranks=[rank(Steps(**fields))])
    assert (host_ms(charged, [310, 350]) < 5).all() and (host_ms(charged, [230, 270]) > 100).all()
    assert not charged.unsure.any()


def test_ranks_that_step_at_separate_times_do_not_wait() -> None:
    """A stall of the host stays one, although another rank has prompts all the time."""
    own = World(prefill=OWN, slow={200: 600 * MS}).records()
    apart = World(prefill=dict.fromkeys(range(5, 400, 4), 100), seed=5).records()
    charged = charge_steps(own, ranks=[rank(apart)])
    assert host_ms(charged, [200])[0] > 590 and not charged.awaited.any()


@pytest.mark.parametrize("why", ["few", "lost", "more"])
def test_what_is_not_known_leaves_a_doubt(why: str) -> None:
    """The other rank has too few steps to compare, a record of it is missing, or there are more ranks than were read."""
    own, other = together()
    kept = np.arange(300, 380) if why == "few" else np.delete(np.arange(400), [310, 311])
    part = Steps(**{name: getattr(other, name)[kept] for name in Steps.__dataclass_fields__})
    charged = charge_steps(own, ranks=[rank(part)] if why != "more" else [], has_all_ranks=why != "more")
    assert host_ms(charged, [310])[0] > 100 and charged.unsure[310] and charged.awaited[310]
    assert charged.unsure[100] == (why == "more")


def test_no_steps_and_no_ranks_are_no_error() -> None:
    """A rank without steps means nothing; of a step without work the work of another is taken."""
    own, _ = together()
    empty = Steps(**{name: getattr(own, name)[:0] for name in Steps.__dataclass_fields__})
    assert not charge_steps(own, ranks=[rank(empty)]).awaited.any()
    assert not len(charge_steps(empty, ranks=[rank(own)]).awaited)
    work = Work(np.ones(3), np.array([5.0, 0, 0]), np.zeros(3))
    raised = work.raised(np.array([0, 1, 1]), np.array([4.0, 1, 0]), np.array([0.0, 1, 3]))
    assert raised.prefill.tolist() == [5, 0, 0] and raised.recompute.tolist() == [0, 3, 0]
