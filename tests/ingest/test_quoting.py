"""Values as ClickHouse reads them: a text literal and a parameter come back as the text that they were made from."""

from __future__ import annotations

import pytest

from legato_ingest.quoting import Value, literal, parameter
from legato_ingest.storage import Store

TEXTS = ["", "plain", "it's", "back\\slash", "\\'", "tab\tnew\nline\rend", "ünï 🎵", "a', 'b", "\\N"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_literal_is_the_text(store: Store, text: str) -> None:
    """Also with quotes, backslashes and line ends in it."""
    assert store.select(f"SELECT {literal(text)}") == [(text,)]


@pytest.mark.parametrize("text", [*TEXTS, "nul\0byte"])
def test_a_parameter_is_the_text(text: str) -> None:
    """Escaped like a field of the format TabSeparated: no character ends the field, and a backslash is never the text's own."""
    assert not set("\t\n\r\0") & set(parameter(text))
    assert parameter(text).encode().decode("unicode_escape").encode("latin-1").decode() == text or "\\N" in text


@pytest.mark.parametrize(("value", "written"), [(7, "7"), (0.5, "0.5"), (["a", "it's"], "['a','it\\'s']"), ([], "[]")])
def test_numbers_and_lists_are_parameters(value: Value, written: str) -> None:
    """A number by its digits, a list as an array of literals."""
    assert parameter(value) == written
