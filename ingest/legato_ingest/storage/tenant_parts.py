"""Parts of all tenants, by a hash of the name: conditions on `tenant` of bounded length that need no list of names.

The module makes conditions and runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from legato_ingest.storage.sql import integers

__all__ = ["HALVINGS_MAX", "in_part", "in_parts", "part_of"]

HALVINGS_MAX = 20
"""A tenant is alone in one of the smallest parts, a million of them. With 65,536, two of 300 tenants shared one in every second store."""


def part_of(tenant: str, halvings: int = HALVINGS_MAX) -> str:
    """Return the expression for the number of the part with a tenant, by default of the smallest one. ``tenant``: an expression."""
    return f"bitAnd(cityHash64({tenant}), {2**halvings - 1})"


def in_part(number: int, halvings: int = HALVINGS_MAX) -> str:
    """Return the condition on `tenant` for a part of all tenants, by default one of the smallest."""
    return f"{part_of('tenant', halvings)} = {number}"


def in_parts(numbers: Collection[int]) -> str:
    """Return the condition on `tenant` for several of the smallest parts, any number of them but none."""
    return f"{part_of('tenant')} IN ({integers(np.array(sorted(numbers), np.int64))})"
