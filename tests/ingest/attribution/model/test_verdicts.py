"""Verdicts as rows of arrays."""

from __future__ import annotations

import numpy as np

from helpers.builders.attribution import verdict
from legato_ingest.causes import PARTS


def test_names_are_those_of_the_table_and_mixed() -> None:
    """Each column has its name, and a verdict without a main cause is ``mixed``."""
    assert [verdict(name, {}).names() for name in (*PARTS, "mixed")] == [[name] for name in (*PARTS, "mixed")]


def test_rows_can_be_taken() -> None:
    """From every column."""
    one = verdict("host", {"base": 10, "host": 90}, step_first=3, step_last=4)
    twice = one.at(np.array([0, 0]))
    assert twice.names() == ["host", "host"] and twice.step_last.tolist() == [4, 4] and twice.excess_ns.tolist() == [90_000_000] * 2
    assert one.at(np.zeros(0, np.int64)).names() == []
