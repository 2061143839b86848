"""Text from outside: which characters are replaced, and that nothing else is."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.hostile import HOSTILE, unseen
from legato_ingest.visible import visible, visible_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""), ("gpt-4o mini", "gpt-4o mini"), ("größe 模型 🦙 עברית हिन्दी", "größe 模型 🦙 עברית हिन्दी"),
        ("a\u3000b\xa0c", "a\u3000b\xa0c"),
        ("a\nb\tc\r", r"a\u000ab\u0009c\u000d"), ("\x00\x1b[2J\x7f\x9b", r"\u0000\u001b[2J\u007f\u009b"), ("\u202egpt", r"\u202egpt"),
        ("pay\u200bpal\ufeff", r"pay\u200bpal\ufeff"), ("a\u2028b\u2029", r"a\u2028b\u2029"), ("\U000e0041", r"\U000e0041"),
        ("\u2764\ufe0f", "\u2764" + r"\ufe0f"), ("\ud800", r"\ud800"), ("\xad\u034f\u3164", r"\u00ad\u034f\u3164"),
    ],
)  # fmt: skip
def test_what_is_not_seen_has_an_escape(text: str, shown: str) -> None:
    """Controls, line breaks, directions, zero width, tags, variation selectors, surrogates; letters of all scripts and spaces stay."""
    assert visible(text) == shown


def test_every_character_of_unicode() -> None:
    """The unseen ones have an escape, and of the others only marks and letters without a shape. A text is never changed twice."""
    blanks = set()
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if visible(character) == character:
            assert not unseen(character) and character != "\n"
            continue
        assert visible(character) in (f"\\u{code:04x}", f"\\U{code:08x}")
        if unicodedata.category(character)[0] not in "CZ":
            blanks.add(character)
    assert len(blanks) == 268 and {unicodedata.category(each) for each in blanks} == {"Mn", "Lo", "So"}
    assert visible(visible(HOSTILE)) == visible(HOSTILE)


@given(st.text(st.characters(), max_size=40))
def test_no_text_has_an_unseen_character_afterwards(text: str) -> None:
    """And text of several lines keeps its lines."""
    assert not unseen(visible(text)) and "\n" not in visible(text)
    assert visible_lines(text).split("\n") == [visible(line) for line in text.split("\n")]
