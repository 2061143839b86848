"""Unparsed items of an iterator: their bound, what is known of those beyond it, and that none runs code in the application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import legato
from legato._items import Items
from legato._recorder import StreamRecorder
from legato._records import Origin
from legato._spans import start_span
from legato._unparsed import OWN_PAGES, PAGE_BYTES, UNPARSED_BYTES_MAX

PAGES = UNPARSED_BYTES_MAX // PAGE_BYTES


def stream(body: Items) -> StreamRecorder:
    """Return a running stream of items that no worker knows."""
    origin = Origin()
    return StreamRecorder(origin, start_span(origin, 0), 0, lambda _: None, body=body)


def test_items_have_the_same_bound(stock: Callable[[], int]) -> None:
    """The fields of an object are unknown until it is measured, so it counts with a size that is large. A folded one is measured."""
    recorder = stream(body=Items())
    for time_ns in range(1, 20_000):
        recorder.read((time_ns, {"choices": [{"delta": {"content": "word"}}]}))
    assert len(recorder.unparsed.reads) < 20_000 and recorder.unparsed.folded
    found = recorder.digest()
    assert set(found.sizes) == {4} and len(found.times) + found.dropped == 19_999
    recorder.read((20_000, {"choices": {"delta": 1}}))
    recorder.end()
    assert recorder.digest().sizes[-1] == 0


def test_whole_numbers_are_items(stock: Callable[[], int]) -> None:
    """They are no sizes of folded reads, and what they were paid with is returned."""
    recorder = stream(body=Items())
    for time_ns in range(1, 2_001):
        recorder.read((time_ns, 42))
        if not time_ns % 100:
            recorder.parse()
    assert stock() >= PAGES - OWN_PAGES
    recorder.end()
    assert set(recorder.digest().sizes) == {0}


def test_no_code_of_an_item_runs_where_it_is_kept(stock: Callable[[], int]) -> None:
    """A class may say anything about itself; the application must not notice, also where the item is folded."""

    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError

    class Text(str):
        def __len__(self) -> int:
            raise RuntimeError

    recorder = stream(body=Items())
    for item in (Odd(), Text("a" * 500)):
        for _ in range(8_000):
            recorder.read((1, item))
        assert recorder.unparsed.folded
    recorder.end()
    assert len(recorder.digest().times) > 8_000
    assert len(list(legato.wrap([Odd(), Text("a")], model="m"))) == 2


def test_holds_after_lost_items_count_for_no_other_item(stock: Callable[[], int]) -> None:
    """Which items were lost is unknown to the columns. Folded ones have theirs."""
    recorder = stream(body=Items())
    lose_at = 0
    pages = [recorder.unparsed._stock.pop() for _ in range(stock())]
    for number in range(1, 201):
        if number == 150:
            recorder.unparsed._stock.extend(pages)
        recorder.read((number, {"choices": [{"delta": {"content": "w"}}]}))
        recorder.held(number)
        lose_at = lose_at or (number if recorder.unparsed.lost else 0)
    recorder.end()
    found = recorder.digest()
    assert found.holds_ns is not None and recorder.unparsed.lost and recorder.unparsed.folded > 1
    for time_ns, hold_ns in zip(found.times, found.holds_ns, strict=True):
        assert hold_ns == (time_ns if time_ns < lose_at else 0)


def test_an_item_that_is_folded_before_any_other_counts(stock: Callable[[], int]) -> None:
    """Whatever the following items are."""
    recorder = stream(body=Items())
    pages = [recorder.unparsed._stock.pop() for _ in range(stock())]
    recorder.read((1, 'data: {"a":"' + "x" * 400_000 + '"}'))
    recorder.unparsed._stock.extend(pages)
    for time_ns in (2, 3):
        recorder.read((time_ns, 'data: {"choices":[{"delta":{"content":"abc"}}]}\n\n'))
    recorder.end()
    assert recorder.unparsed.folded == 1 and recorder.digest().times == [1, 2, 3]
