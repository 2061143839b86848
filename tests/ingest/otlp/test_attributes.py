"""Typed access to attributes: each type, absent keys, precedence, and faults that never quote a value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from helpers.builders.spans import any_value
from legato_ingest.otlp.attributes import TEXT_CHARACTERS_MAX, AttributeFault, Attributes, attribute_map

GET: dict[str, Callable[[Attributes], Any]] = {
    "text": lambda found: found.text("k"),
    "first_text": lambda found: found.first_text("k"),
    "count": lambda found: found.count("k"),
    "small count": lambda found: found.count("k", 9),
    "texts": lambda found: found.texts("k"),
    "counts": lambda found: found.counts("k", 9),
    "flag": lambda found: found.flag("k"),
    "micros": lambda found: found.micros("k"),
    "packed": lambda found: found.packed("k"),
}


def attributes(**values: Any) -> Attributes:
    """Return attributes of a span with these values."""
    return Attributes({key: any_value(value) for key, value in values.items()}, {})


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("text", "a", "a"),
        ("text", "ä" * 2000, "ä" * TEXT_CHARACTERS_MAX),
        ("first_text", ["a", "b"], "a"),
        ("first_text", "a", "a"),
        ("first_text", [], ""),
        ("count", 7, 7),
        ("count", 2**63 - 1, 2**63 - 1),
        ("small count", 9, 9),
        ("texts", ["a", "x" * 2000], ["a", "x" * TEXT_CHARACTERS_MAX]),
        ("counts", [0, 9], [0, 9]),
        ("flag", True, True),
        ("micros", 0.25, 250_000),
        ("micros", 2, 2_000_000),
        ("packed", b"\x00\xff", b"\x00\xff"),
        ("packed", "AP8=", b"\x00\xff"),
    ],
)
def test_values_of_the_right_type(kind: str, value: Any, expected: Any) -> None:
    """Texts are cut to 1,024 characters; durations in seconds become µs."""
    assert GET[kind](attributes(k=value)) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("text", ""), ("first_text", ""), ("count", None), ("texts", []), ("counts", []), ("flag", False), ("micros", None), ("packed", None)],
)
def test_an_absent_attribute_is_unknown(kind: str, expected: Any) -> None:
    """It is None, or the empty value of its type."""
    assert GET[kind](attributes(other=1)) == expected


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("text", 4, "k: int, expected a string"),
        ("first_text", [4], "k: int, expected an array of strings"),
        ("count", "secret", "k: string, expected an integer"),
        ("count", -1, "k: an integer outside"),
        ("small count", 10, "k: an integer outside 0 to 9"),
        ("texts", ["a", 4], "k: int, expected an array of strings"),
        ("texts", "secret", "k: string, expected an array of strings"),
        ("counts", [10], "k: an integer outside 0 to 9"),
        ("counts", [-1], "k: an integer outside"),
        ("flag", 1, "k: int, expected a boolean"),
        ("micros", "secret", "k: string, expected a number of seconds"),
        ("micros", math.nan, "k: a number of seconds that is"),
        ("micros", -0.5, "k: a number of seconds that is"),
        ("micros", 1e9, "k: a number of seconds that is"),
        ("packed", "not secret!", "k: a string that is not base64"),
        ("packed", 4, "k: int, expected bytes"),
    ],
)
def test_a_fault_names_key_and_type(kind: str, value: Any, message: str) -> None:
    """The value is never quoted."""
    with pytest.raises(AttributeFault) as error:
        GET[kind](attributes(k=value))
    assert str(error.value).startswith(message) and "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("text", 4, "4"),
        ("text", 1.2, "1.2"),
        ("text", math.nan, ""),
        ("text", True, ""),
        ("text", ["a"], ""),
        ("first_text", [4], "4"),
        ("first_text", 7, "7"),
        ("count", "8080", 8080),
        ("count", "-1", None),
        ("count", "secret", None),
        ("count", "9" * 5_000, None),
        ("count", 1.5, None),
        ("small count", "10", None),
        ("small count", 10, None),
        ("texts", ["a", 4], []),
        ("texts", "secret", []),
        ("counts", [10], []),
        ("flag", "True", True),
        ("flag", "secret", False),
        ("flag", 1, False),
        ("micros", "secret", None),
        ("micros", -0.5, None),
        ("packed", "not secret!", None),
        ("packed", 4, None),
    ],
)
def test_values_of_scope_and_resource_refuse_nothing(kind: str, value: Any, expected: Any) -> None:
    """Users and Collectors set them, and each of them belongs to all spans of a process. The span's own are read strictly."""
    assert GET[kind](Attributes({}, {"k": any_value(value)})) == expected
    with pytest.raises(AttributeFault):
        GET[kind](Attributes({"k": any_value(value)}, {}))


def test_attributes_of_the_span_override_outer_ones() -> None:
    """Those of scope and resource are found by `get` only. Of equal keys the last counts."""
    found = Attributes({"a": any_value("span")}, {"a": any_value("resource"), "b": any_value("resource")})
    assert (found.text("a"), found.text("b"), set(found.own)) == ("span", "resource", {"a"})
    pairs = request_attributes([("a", "1"), ("b", "2"), ("a", "3")])
    assert {key: value.string_value for key, value in attribute_map(pairs).items()} == {"a": "3", "b": "2"}


def request_attributes(pairs: list[tuple[str, str]]) -> Any:
    """Return repeated attributes as a request holds them."""
    span = any_value("")
    for key, value in pairs:
        span.kvlist_value.values.add(key=key).value.string_value = value
    return span.kvlist_value.values
