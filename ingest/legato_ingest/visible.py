"""Text from outside as characters that can be seen, for terminals, logs and reports.

Senders choose the names that Legato stores. A name could steer a terminal, forge a line of a log, run backwards, or look like another name
through characters without a width. Each such character is replaced by an escape. The data itself and JSON stay as they are.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

__all__ = ["visible", "visible_lines"]

# Controls, formats (zero width, directions, tags), surrogates, private use, unassigned, and the two separators of lines and paragraphs.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
# Characters of other categories that are drawn as nothing (Unicode's property Default_Ignorable_Code_Point), and Braille's blank.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def visible(text: str) -> str:
    r"""Return the text in one line, with an escape such as ``\u202e`` in place of each character that is not seen."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def visible_lines(text: str) -> str:
    r"""Return the text as ``visible`` does, with its line breaks (``\n``)."""
    return "\n".join(map(visible, text.split("\n")))


@lru_cache(4096)
def _shown(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN and not _BLANK.match(character):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
