"""Tenants with much to judge at once are put aside: the others are judged first, and these in turns, slice by slice.

So streams of one tenant delay the verdicts on those of another by some seconds, however many they are. Each tenant that is aside has
separate progress; what was received since is looked for when its streams are judged. The module keeps this in memory: after a restart the
progress in the store counts, which is the least of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.streams import Most, Size
from legato_ingest.storage.sql import quoted, quoted_all

__all__ = ["TURN", "Aside", "Turns", "only"]

TURN = Most(streams=2_000, bytes=2**26)
"""A tenant that has more to judge in one run is put aside, and a turn is a slice of this: some seconds."""
# So is one with streams in more slices: each costs some twenty statements, 0.15 s, however few its streams are.
_SLICES_MAX = 16
# At most so many tenants are aside; the others are judged at once, whatever they have.
_ASIDE_MAX = 256


@dataclass(slots=True)
class Aside:
    """A tenant that is aside.

    What was received until ``since_ms`` is judged, and what is due until ``until_ms`` is in ``due`` or, divided, in ``slices``. All
    evidence was seen until ``seen_ms`` (Unix ms).
    """

    since_ms: int
    until_ms: int
    seen_ms: int
    due: list[Due] = field(default_factory=list)
    slices: list[Due] = field(default_factory=list)


class Turns:
    """The tenants that are aside, in the order of their turns."""

    def __init__(self) -> None:
        self._aside: dict[str, Aside] = {}

    def __len__(self) -> int:
        return len(self._aside)

    @property
    def others(self) -> str:
        """The condition on `tenant` for those that are not aside."""
        return f"tenant NOT IN ({quoted_all(sorted(self._aside))})" if self._aside else "1"

    def put_aside(self, sizes: Mapping[str, Size], due: Sequence[Due], since_ms: int, until_ms: int, seen_ms: int) -> list[str]:
        """Put the tenants aside of which much is due, the smallest first, and return them. ``sizes``: by tenant.

        A tenant that is aside stays as it is, with what it has left to judge.
        """
        # Without tenants there is no other to be judged first.
        named = ((name, size) for name, size in sizes.items() if name and name not in self._aside)
        large = sorted((each for each in named if _is_large(each[1])), key=lambda each: each[1])
        names = [name for name, _ in large[-max(0, _ASIDE_MAX - len(self)) :]] if len(self) < _ASIDE_MAX else []
        for name in names:
            self._aside[name] = Aside(since_ms, until_ms, seen_ms, [only(each, f"tenant = {quoted(name)}") for each in due])
        return names

    def next(self) -> tuple[str, Aside]:
        """Return the tenant with the next turn; then the others have theirs."""
        name = next(iter(self._aside))
        own = self._aside[name] = self._aside.pop(name)
        return name, own

    def end(self, name: str) -> None:
        """The tenant has caught up with the others."""
        del self._aside[name]

    def clear(self) -> None:
        """Forget all."""
        self._aside.clear()

    def reached_ms(self, others_ms: int) -> int:
        """Return until when all tenants are judged. ``others_ms``: those that are not aside."""
        return min([others_ms, *(each.since_ms for each in self._aside.values())])


def _is_large(size: Size) -> bool:
    return size.streams > TURN.streams or size.bytes > TURN.bytes or size.slices > _SLICES_MAX


def only(due: Due, tenants: str) -> Due:
    """Return those of the streams that satisfy a condition on `tenant`."""
    return due if tenants == "1" else replace(due, keys=f"({due.keys}) AND {tenants}")
