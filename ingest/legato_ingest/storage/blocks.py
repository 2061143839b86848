"""The names of data parts of ClickHouse: the partition of a part and the blocks of rows that it contains (MergeTreePartInfo.h)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Blocks", "is_covered"]

# Partition, first and last block, level, and the version after a mutation. The folder of a detached part may have a prefix.
_PREFIX = r"(?:(?:[a-z]+(?:-[a-z0-9]+)+|broken|unexpected|ignored|noquorum|clone|cloned|attaching|deleting)_)?"
_FOLDER = re.compile(_PREFIX + r"([0-9A-Za-z-]+)_(\d+)_(\d+)_(\d+)(?:_\d+)?(?:_try\d+)?")
_IN_TEXT = re.compile(r"(?<![0-9A-Za-z_-])[0-9A-Za-z]+_\d+_\d+_\d+(?:_\d+)?(?![0-9A-Za-z_])")


class Blocks(NamedTuple):
    """The partition of a part, and its first and its last block."""

    partition: str
    first: int
    last: int

    @classmethod
    def of(cls, name: str) -> Blocks | None:
        """Return them for the name of a part or of its folder; ``None`` for another name."""
        found = _FOLDER.fullmatch(name)
        return cls(found.group(1), int(found.group(2)), int(found.group(3))) if found else None

    @staticmethod
    def names_in(message: str) -> list[str]:
        """Return the names of parts in a message."""
        return _IN_TEXT.findall(message)


def is_covered(name: str, names: Iterable[str]) -> bool:
    """Return whether the parts with these names have all blocks of the part ``name``, one of them or together without a hole."""
    blocks = Blocks.of(name)
    if blocks is None:
        return False
    found = (each for other in names if (each := Blocks.of(other)) is not None)
    reached = blocks.first
    for each in sorted(each for each in found if each.partition == blocks.partition and each.last >= blocks.first):
        if each.first > reached:
            break
        reached = max(reached, each.last + 1)
    return reached > blocks.last
