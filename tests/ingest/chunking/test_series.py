"""A series of minutes: the columns that it accepts and rejects, and the expectation by the week before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from helpers.builders.chunking_minutes import DAY, MONDAY_S, even, series, steps
from legato_ingest.chunking.series import Minutes, expect


def tiny(**columns: Any) -> Minutes:
    """Return three minutes of two streams, with these columns replaced."""
    two, one = np.full(3, 2), np.ones(3)
    plain = {"minute_s": MONDAY_S + 60 * np.arange(3), "streams": two, "share_sum": one, "chunking_streams": two}
    plain |= {"tokens_per_chunk_sum": 2 * one, "rate_streams": two, "log_rate_sum": one, "log_rate_sq_sum": one}
    return Minutes(**(plain | columns))


def test_the_week_before_is_the_reference() -> None:
    """A weekly cycle is followed in its second week: the expectation of each hour is that of the week before, not the day's mean."""
    minutes = series(17, 15, 20.0, steps((0, 0.10)), load=even)
    expected = expect(minutes, 0, DAY)
    second_week = expected.mean[8 * 24 : 14 * 24]
    truth = 0.10 + 0.03 * np.sin(2 * np.pi * (np.arange(8 * 24, 14 * 24) + 0.5 - 9) / 24)
    assert np.abs(second_week - truth).max() < 0.015
    assert expected.error.max() < 0.01


NAN = np.array([0.5, math.nan, 0.5])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"share_sum": NAN}, r"share_sum\[1\] is nan .*; expected 0 to 1 for each of its streams"),
        ({"share_sum": np.array([0.5, 0.5, 2.1])}, r"share_sum\[2\] is 2.1 "),
        ({"share_sum": np.array([-0.1, 0.5, 0.5])}, r"share_sum\[0\] is -0.1 "),
        ({"log_rate_sum": np.array([1.0, math.inf, 1.0])}, r"log_rate_sum\[1\] is inf .*for each of its rate_streams"),
        ({"log_rate_sq_sum": NAN}, r"log_rate_sq_sum\[1\] is nan"),
        ({"tokens_per_chunk_sum": NAN}, r"tokens_per_chunk_sum\[1\] is nan .*for each of its chunking_streams"),
        ({"streams": np.array([2, -1, 2])}, r"streams\[1\] is -1 .*expected 0 or more"),
        ({"streams": np.array([2.0, 1.0, 2.0])}, r"streams has type float64; expected integers"),
        ({"streams": np.array([2, 2])}, r"streams has shape \(2,\); expected \(3,\)"),
        ({"minute_s": MONDAY_S + np.array([0, 60, 90])}, r"minute_s\[2\] is \d+ .*multiple of 60"),
        ({"minute_s": MONDAY_S + np.array([0, 60, 60])}, r"minute_s\[2\] is \d+ .*sort by minute"),
        ({"minute_s": MONDAY_S + np.array([60, 0, 120])}, r"minute_s\[1\] is \d+ .*sort by minute"),
    ],
)
def test_impossible_sums_are_rejected(columns: dict[str, Any], message: str) -> None:
    """The error names the column, the entry, the value found and the expected range."""
    with pytest.raises(ValueError, match=message):
        tiny(**columns)


def test_columns_of_the_store_are_accepted() -> None:
    """Unsigned and narrow integers, and sums of 32-bit shares slightly above n, are accepted."""
    minutes = tiny(streams=np.full(3, 2, np.uint32), share_sum=np.full(3, 2.0000001))
    assert minutes.streams.dtype == np.int64
    assert minutes.shares.tolist() == [1.0, 1.0, 1.0]
