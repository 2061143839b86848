"""Tenants with much to judge at once are put aside: the others are judged first, and these in turns, slice by slice.

So streams of one tenant delay the verdicts on those of another by some seconds, however many they are. Each tenant that is aside has
separate progress; what was received since is looked for when its streams are judged. Each run records until when its streams are judged,
and until when those of the others; a restarted process goes on there. What is found and not judged yet is in memory alone.

What the store had no memory for is aside, too, until it is tried again: the memory of the store is short for all, and often for a moment.
After another error in its turn a tenant has none for a while, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.streams import Most, Size
from legato_ingest.storage.judged import Key, Progress
from legato_ingest.storage.sql import quoted, quoted_all
from legato_ingest.storage.tenant_parts import in_part, in_parts

__all__ = ["TURN", "Aside", "Turns"]

TURN = Most(streams=2_000, bytes=2**26)
"""A tenant that has more to judge in one run is put aside, and a turn is a slice of this: some seconds."""
# So is one with streams in more slices: each costs some twenty statements, 0.15 s, however few its streams are.
_SLICES_MAX = 16
# At most so many tenants are aside; the others are judged at once, whatever they have.
_ASIDE_MAX = 256
# What the store has no memory for so often, and never nearer to each other than this, is left out.
_TRIES_MAX = 3
_AGAIN_S = 10.0
# After an error in its turn a tenant waits for so long at most. Others wait for a statement that is given up after minutes.
_AFTER_ERROR_S_MAX = 600.0
# So many tenants are recorded apart, those that are most behind. Beyond that the recorded progress of the others is the least of the rest.
_RECORDED_MAX = 4_096


@dataclass(slots=True)
class Aside:
    """A tenant that is aside, or the tenants of a smallest part: ``tenants`` is the condition on `tenant`.

    What was received until ``since_ms`` is judged, and what is due until ``until_ms`` is in ``due`` or, divided, in ``slices``. All
    evidence was seen until ``seen_ms`` (Unix ms). The store had no memory for it ``tries`` times since a slice was judged, and it has
    no turn before ``again_s``.
    """

    tenants: str
    since_ms: int
    until_ms: int
    seen_ms: int
    due: list[Due] = field(default_factory=list)
    slices: list[Due] = field(default_factory=list)
    tries: int = 0
    again_s: float = 0.0

    @property
    def judged_ms(self) -> int:
        """Until when all is judged that was received."""
        return self.since_ms if self.due or self.slices else self.until_ms


class Turns:
    """The tenants that are aside, in the order of their turns."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        # By the name of a tenant, or by the number of a part.
        self._aside: dict[Key, Aside] = {}
        # How many of the last turns ended with an error, and before when there is no other turn. It is kept when a run fails: if the
        # process of the store ends with each such turn, its run cannot be recorded, and the next ones must not begin with that turn.
        self._errors: dict[Key, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._aside)

    @property
    def others(self) -> str:
        """The condition on `tenant` for those that are not aside."""
        names = [key for key in self._aside if isinstance(key, str)]
        numbers = [key for key in self._aside if isinstance(key, int)]
        conditions = [f"tenant NOT IN ({quoted_all(sorted(names))})"] if names else []
        conditions += [f"NOT {in_parts(numbers)}"] if numbers else []
        return " AND ".join(conditions) or "1"

    def put_aside(self, sizes: Mapping[str, Size], due: Sequence[Due], since_ms: int, until_ms: int, seen_ms: int) -> list[str]:
        """Put the tenants aside of which much is due, the smallest first, and return them. ``sizes``: by tenant.

        A tenant that is aside stays as it is, with what it has left to judge.
        """
        # Without tenants there is no other to be judged first.
        named = ((name, size) for name, size in sizes.items() if name and name not in self._aside)
        large = sorted((each for each in named if _is_large(each[1])), key=lambda each: each[1])
        names = [name for name, _ in large[-max(0, _ASIDE_MAX - len(self)) :]] if len(self) < _ASIDE_MAX else []
        for name in names:
            own = _only_of(name)
            self._aside[name] = Aside(own, since_ms, until_ms, seen_ms, [each.only(own) for each in due])
        return names

    def put_part_aside(self, number: int, since_ms: int, seen_ms: int) -> None:
        """Put a smallest part aside that the store had no memory for. What is due is looked for again."""
        own = self._aside.setdefault(number, Aside(_only_of(number), since_ms, since_ms, seen_ms))
        self.try_later(own)

    def restore(self, aside: Mapping[Key, int]) -> None:
        """Put tenants and parts aside that are judged until these times (Unix ms). What is due is looked for again."""
        for key, since_ms in aside.items():
            self._aside[key] = Aside(_only_of(key), since_ms, since_ms, since_ms)

    def failed(self, key: Key) -> None:
        """Let a tenant wait after an error in its turn, after each further one twice as long. Its next turn repeats the step."""
        errors, _ = self._errors.get(key, (0, 0.0))
        self._errors[key] = errors + 1, self._clock_s() + min(_AGAIN_S * 2.0 ** min(errors, 16), _AFTER_ERROR_S_MAX)

    def succeeded(self, key: Key) -> None:
        """Forget the errors of a tenant: a slice was judged, or all is. What precedes a slice is repeated after each failed run."""
        self._errors.pop(key, None)

    def try_later(self, own: Aside) -> bool:
        """Let what the store had no memory for wait for its next try. Return False if it has had all of its tries.

        What follows then has no more, until a slice is judged: a tenant with too large rows has them left out within seconds.
        """
        own.tries += 1
        if own.tries >= _TRIES_MAX:
            return False
        own.again_s = self._clock_s() + _AGAIN_S
        return True

    def next(self) -> tuple[Key, Aside] | None:
        """Return the key and the progress of the next turn; then the others have theirs. None if all wait for their next try."""
        now_s = self._clock_s()
        key = next((key for key, own in self._aside.items() if max(own.again_s, self._errors.get(key, (0, 0.0))[1]) <= now_s), None)
        if key is None:
            return None
        own = self._aside[key] = self._aside.pop(key)
        return key, own

    def end(self, key: Key) -> None:
        """The tenant has caught up with the others."""
        del self._aside[key]
        self.succeeded(key)

    def clear(self) -> None:
        """Forget the tenants and parts that are aside. The pauses after errors stay."""
        self._aside.clear()

    def progress(self, others_ms: int) -> Progress:
        """Return until when the tenants are judged. ``others_ms``: those that are not aside (Unix ms)."""
        times = ((own.judged_ms, key) for key, own in self._aside.items())
        behind = sorted((each for each in times if each[0] < others_ms), key=lambda each: each[0])
        rest = [since_ms for since_ms, _ in behind[_RECORDED_MAX:]]
        return Progress(min([others_ms, *rest]), {key: since_ms for since_ms, key in behind[:_RECORDED_MAX]})


def _only_of(key: Key) -> str:
    """Return the condition on `tenant` for what is aside by this key."""
    return f"tenant = {quoted(key)}" if isinstance(key, str) else in_part(key)


def _is_large(size: Size) -> bool:
    return size.streams > TURN.streams or size.bytes > TURN.bytes or size.slices > _SLICES_MAX
