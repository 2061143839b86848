"""How far the export has come: the time of receipt up to which stalls are exported, and apart from it that of tenants that are behind.

A tenant is behind while its verdicts are. It is known by its part of all tenants (``tenant_parts``): the parts do not overlap, so each
stream is exported once, and a name that the attribution has and a part that the name is in are one. The module sends nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from legato_ingest.storage import Store
from legato_ingest.storage.judged import TIMES, Progress
from legato_ingest.storage.sql import digits_of
from legato_ingest.storage.tenant_parts import in_parts, part_of

__all__ = ["OTHERS", "Passed", "parts_of", "passed_until"]

# The stalls of all tenants are exported until `least_ms`: an earlier version, which records that alone, may have gone on meanwhile.
# Of rows with one time the last has the least behind, as in `judged`.
_NEWEST = f"""
SELECT toUnixTimestamp64Milli(others_until) AS others_ms, mapKeys(aside_parts), {TIMES.format("aside_parts")} AS parts_ms,
    (SELECT toUnixTimestamp64Milli(max(until)) FROM trace_export_runs) AS least_ms
FROM trace_export_runs
WHERE others_until = (SELECT max(others_until) FROM trace_export_runs)
ORDER BY arraySum(each -> others_ms - each, parts_ms)
LIMIT 1"""
OTHERS: Sequence[int] = ()
"""The group of all tenants that are not behind; other groups are numbers of parts."""


@dataclass(slots=True)
class Passed:
    """Until when (Unix ms) stalls are exported: those of the parts in ``aside`` until theirs, all others until ``others_ms``."""

    others_ms: int = 0
    aside: dict[int, int] = field(default_factory=dict)

    @property
    def least_ms(self) -> int:
        """Until when the stalls of all tenants are exported."""
        return min([self.others_ms, *self.aside.values()])

    def put_aside(self, judged_ms: Mapping[int, int], until_ms: int) -> None:
        """Let the others pass the parts that are judged until an earlier time than ``until_ms``."""
        if until_ms > self.others_ms:
            for number in (number for number, ms in judged_ms.items() if ms < until_ms):
                self.aside.setdefault(number, self.others_ms)

    def groups(self, judged_ms: Mapping[int, int]) -> list[tuple[Sequence[int], int]]:
        """Return the parts that can follow the others, those with the same times as one group, each with the time to follow to."""
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number, since_ms in sorted(self.aside.items()):
            to_ms = min(self.others_ms, judged_ms.get(number, self.others_ms))
            if to_ms > since_ms:
                found[since_ms, to_ms].append(number)
        return [(numbers, to_ms) for (_, to_ms), numbers in found.items()]

    def condition(self, group: Sequence[int]) -> str:
        """Return the condition on `tenant` for a group."""
        if group:
            return in_parts(group)
        return f"NOT {in_parts(self.aside)}" if self.aside else "1"

    def since_ms(self, group: Sequence[int]) -> int:
        """Return until when a group is exported."""
        return self.aside[group[0]] if group else self.others_ms

    def of_part(self, number: int) -> int:
        """Return until when the streams of a part are exported, whether it is aside or not."""
        return self.aside.get(number, self.others_ms)

    def move(self, group: Sequence[int], until_ms: int) -> None:
        """Let a group be exported until a time."""
        if group:
            self.aside.update(dict.fromkeys(group, until_ms))
        else:
            self.others_ms = until_ms

    def join(self) -> bool:
        """Let the parts that have caught up be with the others again, and return whether any has."""
        before = len(self.aside)
        self.aside = {number: ms for number, ms in self.aside.items() if ms < self.others_ms}
        return len(self.aside) < before

    def leave_out(self, until_ms: int) -> None:
        """Pass what was received until a time."""
        self.others_ms = max(self.others_ms, until_ms)
        self.aside = {number: max(ms, until_ms) for number, ms in self.aside.items()}

    def times(self) -> dict[str, int]:
        """Return the times of a row with this progress. An instance of an earlier version reads `until` alone: it repeats spans then."""
        return {"until": self.least_ms, "others_until": self.others_ms}

    def columns(self) -> dict[str, pa.Array]:
        """Return the further column of this row."""
        return {"aside_parts": pa.array([list(self.aside.items())], pa.map_(pa.uint32(), pa.timestamp("ms", "UTC")))}


def passed_until(store: Store) -> Passed:
    """Return the recorded progress; 0 before the first run. Raises ``StoreError``."""
    for others_ms, numbers, parts_ms, least_ms in store.select(_NEWEST):
        aside = {int(number): max(int(ms), int(least_ms)) for number, ms in zip(numbers, parts_ms, strict=True)}
        passed = Passed(int(others_ms), aside)
        passed.join()
        return passed
    return Passed()


def parts_of(store: Store, judged: Progress) -> dict[int, int]:
    """Return until when the parts with tenants that are behind are judged (Unix ms). Raises ``StoreError``."""
    parts = [(key, ms) for key, ms in judged.aside.items() if isinstance(key, int)]
    names = {key: ms for key, ms in judged.aside.items() if isinstance(key, str)}
    if names:
        sql = f"SELECT each, {part_of('unhex(each)')} FROM (SELECT arrayJoin({digits_of(names)}) AS each)"
        parts += [(int(number), names[bytes.fromhex(str(each)).decode()]) for each, number in store.select(sql)]
    found: dict[int, int] = {}
    for number, ms in parts:
        found[number] = min(ms, found.get(number, ms))
    return found
