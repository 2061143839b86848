"""Typed access to the attributes of a span.

A key is looked up on the span, then on its scope, then on its resource. An absent attribute is unknown. One of the span itself with the
wrong type or an impossible value raises ``AttributeFault``. One of the scope or the resource is read as what it may stand for, else it is
unknown: users and Collectors set these, as texts in an environment variable or as numbers in YAML, and each would reject every span of a
process. The module depends on no convention: the emitters' modules pass the keys.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

__all__ = ["AttributeFault", "Attributes", "attribute_map", "number_text", "outer_map"]

_INT_MAX = 2**63 - 1
_INTEGER = re.compile(r"-?[0-9]{1,19}")
TEXT_CHARACTERS_MAX = 1024
# Each row of a foreign span has a copy of the version of its scope.
_SCOPE_CHARACTERS_MAX = 256
# So many attributes of a scope and its resource are merged into those of each span. More would cost their number for each of thousands of
# spans and scopes.
_MERGED_MAX = 32


class AttributeFault(ValueError):
    """An attribute of the wrong type or an impossible value. The message names the key and the type, never the value."""


def attribute_map(attributes: Iterable[KeyValue]) -> dict[str, AnyValue]:
    """Return attributes by key; the last of equal keys counts."""
    return {attribute.key: attribute.value for attribute in attributes}


def outer_map(scope: dict[str, AnyValue], resource: dict[str, AnyValue]) -> Mapping[str, AnyValue]:
    """Return the attributes outside spans: those of a scope override those of its resource. Many of them are not copied."""
    return {**resource, **scope} if len(scope) + len(resource) <= _MERGED_MAX else ChainMap(scope, resource)


def number_text(value: AnyValue) -> str:
    """Return the text of a number, such as a version without quotes in YAML; empty for any other value."""
    which = value.WhichOneof("value")
    if which == "double_value" and math.isfinite(value.double_value):
        return str(value.double_value)
    return str(value.int_value) if which == "int_value" else ""


def _chained(own: Mapping[str, AnyValue], outer: Mapping[str, AnyValue]) -> Callable[[str], AnyValue | None]:
    return lambda key: own[key] if key in own else outer.get(key)


class Attributes:
    """The attributes of one span, which override those of its scope and resource (``outer``, of ``outer_map``).

    ``get(key)`` returns the value of a key from all of them; ``own`` holds only those of the span. ``scope`` and ``scope_version`` name
    the instrumentation scope, that is, the library that made the span.
    """

    __slots__ = ("get", "own", "scope", "scope_version")

    def __init__(self, own: Mapping[str, AnyValue], outer: Mapping[str, AnyValue], scope: str = "", scope_version: str = "") -> None:
        self.own = own
        self.scope, self.scope_version = scope[:_SCOPE_CHARACTERS_MAX], scope_version[:_SCOPE_CHARACTERS_MAX]
        # A look-up in one dictionary is the fastest, and there are many for each span.
        self.get: Callable[[str], AnyValue | None] = {**outer, **own}.get if type(outer) is dict else _chained(own, outer)

    def text(self, key: str) -> str:
        """Return a string, cut to 1,024 characters; empty when absent."""
        value = self.get(key)
        if value is None:
            return ""
        if value.WhichOneof("value") != "string_value":
            self._refuse(key, _wrong(key, value, "a string"))
            return number_text(value)
        text: str = value.string_value
        return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX]

    def first_text(self, key: str) -> str:
        """Return the first of an array of strings, or a plain string; empty when absent or empty."""
        value = self.get(key)
        if value is None or value.WhichOneof("value") != "array_value":
            return self.text(key)
        items = value.array_value.values
        if not items:
            return ""
        if items[0].WhichOneof("value") != "string_value":
            self._refuse(key, _wrong(key, items[0], "an array of strings"))
            return number_text(items[0])
        text: str = items[0].string_value
        return text[:TEXT_CHARACTERS_MAX]

    def count(self, key: str, most: int = _INT_MAX) -> int | None:
        """Return an integer from 0 to ``most``; None when absent."""
        value = self.get(key)
        if value is None:
            return None
        number: int | None = value.int_value
        if value.WhichOneof("value") != "int_value":
            self._refuse(key, _wrong(key, value, "an integer"))
            number = _whole(value.string_value)
        if number is not None and not 0 <= number <= most:
            self._refuse(key, AttributeFault(f"{key}: an integer outside 0 to {most}"))
            return None
        return number

    def texts(self, key: str) -> list[str]:
        """Return an array of strings, each cut to 1,024 characters; empty when absent."""
        return [value[:TEXT_CHARACTERS_MAX] for value in self._array(key, "string_value", "an array of strings")]

    def counts(self, key: str, most: int = _INT_MAX) -> list[int]:
        """Return an array of integers from 0 to ``most``; empty when absent."""
        values: list[int] = self._array(key, "int_value", "an array of integers")
        if values and not 0 <= min(values) <= max(values) <= most:
            self._refuse(key, AttributeFault(f"{key}: an integer outside 0 to {most}"))
            return []
        return values

    def _array(self, key: str, which: str, expected: str) -> list[Any]:
        value = self.get(key)
        if value is None:
            return []
        wrong = value if value.WhichOneof("value") != "array_value" else None
        wrong = wrong or next((item for item in value.array_value.values if item.WhichOneof("value") != which), None)
        if wrong is not None:
            self._refuse(key, _wrong(key, wrong, expected))
            return []
        return [getattr(item, which) for item in value.array_value.values]

    def flag(self, key: str) -> bool:
        """Return a boolean; False when absent."""
        value = self.get(key)
        if value is None:
            return False
        if value.WhichOneof("value") != "bool_value":
            self._refuse(key, _wrong(key, value, "a boolean"))
            return value.string_value.lower() == "true"
        return value.bool_value

    def micros(self, key: str) -> int | None:
        """Return a duration in seconds as an integer number of µs; None when absent."""
        value = self.get(key)
        if value is None:
            return None
        which = value.WhichOneof("value")
        if which not in ("double_value", "int_value"):
            self._refuse(key, _wrong(key, value, "a number of seconds"))
            return None
        seconds = value.double_value if which == "double_value" else float(value.int_value)
        if not (math.isfinite(seconds) and 0 <= seconds < 1e9):
            self._refuse(key, AttributeFault(f"{key}: a number of seconds that is negative, infinite, at least 1e9 or not a number"))
            return None
        return round(seconds * 1e6)

    def packed(self, key: str) -> bytes | None:
        """Return bytes, which may be sent as base64 in a string; None when absent."""
        value = self.get(key)
        if value is None:
            return None
        which = value.WhichOneof("value")
        if which == "bytes_value":
            return value.bytes_value
        fault = _wrong(key, value, "bytes, or base64 in a string")
        if which == "string_value":
            try:
                return base64.b64decode(value.string_value, validate=True)
            except (binascii.Error, ValueError):
                fault = AttributeFault(f"{key}: a string that is not base64")
        self._refuse(key, fault)
        return None

    def _refuse(self, key: str, fault: AttributeFault) -> None:
        """Raise for an attribute of the span itself."""
        if key in self.own:
            raise fault


def _whole(text: str) -> int | None:
    """Return an integer that was sent as a text; None for any other text."""
    return int(text) if _INTEGER.fullmatch(text) else None


def _wrong(key: str, value: AnyValue, expected: str) -> AttributeFault:
    found = value.WhichOneof("value") or "no value"
    return AttributeFault(f"{key}: {found.removesuffix('_value')}, expected {expected}")
