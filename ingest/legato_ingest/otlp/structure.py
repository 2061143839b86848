"""The check of the structure of a request in protobuf, before anything of it is converted.

It walks over the messages around the items and looks at no item. A body that passes can be split into small requests (``split``), and no
later one of them makes it a bad request, when rows of the first ones are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato_ingest.errors import TooLarge
from legato_ingest.otlp.protobuf import Malformed, read_fields
from legato_ingest.otlp.signals import Signal

__all__ = ["ENVELOPES_BYTES_MAX", "FIELDS_MAX", "ITEMS_MAX", "SHARED_LEVELS", "Left", "check"]

ITEMS_MAX = 262_144
"""Items of one request, with the resources and scopes around them."""
# A field takes a microsecond to read. Real requests have a few around many items.
FIELDS_MAX = 1_000_000
# Resource and scope are repeated in every small request; real ones take a few hundred bytes.
ENVELOPES_BYTES_MAX = 256 * 1024
SHARED_LEVELS = 2
"""The levels of resource and scope. A fault in their structure rejects the request; a fault on a deeper level rejects one metric."""


@dataclass(slots=True)
class Left:
    """How many items and messages, and how many fields of any number, may still be read."""

    items: int
    fields: int

    @classmethod
    def of_request(cls) -> Left:
        """Return what one request may have."""
        return cls(ITEMS_MAX, FIELDS_MAX)


def check(content: bytes, signal: Signal, left: Left) -> None:
    """Check the structure of a body before anything of it is converted, and take what it holds from ``left``.

    Raises ``BadRequest`` when it is malformed, and ``TooLarge`` when it has too many items and messages around them, or when the fields of
    a resource and its scope are too large to be repeated in every small request.
    """
    _envelope_bytes(content, 0, len(content), signal, 0, left)


def _envelope_bytes(content: bytes, start: int, end: int, signal: Signal, level: int, left: Left) -> int:
    """Take what is within one message on this level from what is left, and return the bytes of its fields that lead to no item.

    The largest of such bytes of a message inside are included, on the levels of resource and scope.
    """
    own = inner = 0
    try:
        for number, at, to, field_start in read_fields(content, start, end):
            left.fields -= 1
            if left.fields < 0:
                raise TooLarge(f"a request of more than {FIELDS_MAX} fields around its {signal.item}s: send fewer in one request")
            if number not in signal.levels[level]:
                own += to - field_start
                continue
            left.items -= 1
            if left.items < 0:
                raise TooLarge(f"a request of more than {ITEMS_MAX} {signal.item}s, scopes and resources: send fewer in one request")
            if level + 1 < len(signal.levels):
                inner = max(inner, _envelope_bytes(content, at, to, signal, level + 1, left))
    except Malformed:
        if level <= SHARED_LEVELS:
            raise
    if level > SHARED_LEVELS:
        return 0
    if level and own + inner > ENVELOPES_BYTES_MAX:
        raise TooLarge(f"a resource and scope of {own + inner} bytes, at most {ENVELOPES_BYTES_MAX} are accepted")
    return own + inner
