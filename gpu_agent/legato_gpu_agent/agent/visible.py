"""Text from outside as characters that can be seen, in the agent's log and report.

Engines, exporters and drivers name themselves. A name could steer a terminal, forge a line of the log, run backwards or be unseen. The rule
is that of `legato_ingest.visible`, which this distribution does not import. What is sent stays as it is.
"""

from __future__ import annotations

import logging
import re
import unicodedata

__all__ = ["LineFormatter", "visible"]

# Controls, formats (zero width, directions, tags), surrogates, private use, unassigned, and the two separators of lines and paragraphs.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
# Characters of other categories that are drawn as nothing (Unicode's property Default_Ignorable_Code_Point), and Braille's blank.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


class LineFormatter(logging.Formatter):
    """Formats a record as one line with its time and level. The lines of a traceback are indented, so that none looks like a record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback if the record has one."""
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        lines = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join([visible(self.formatMessage(record)), *(f"  {visible(line)}" for line in lines)])


def visible(text: str) -> str:
    r"""Return the text in one line, with an escape such as ``\u202e`` in place of each character that is not seen."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN and not _BLANK.match(character):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
