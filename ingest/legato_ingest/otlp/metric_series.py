"""The series of data points: a metric with its resource, scope and point attributes.

A set of attributes is evaluated once in a request, however many points carry it. The hash of a series covers the complete set, including
the parts of texts that are cut in the row. The bytes of attributes that rows repeat are bounded for one row and for the request. The module
does not look at the numbers of points.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue

from legato_ingest.otlp.attributes import TEXT_CHARACTERS_MAX

__all__ = ["ATTRIBUTES_MAX", "Labels", "Pairs", "SeriesIndex", "resource_labels", "scope_labels", "text_pairs"]

ATTRIBUTES_MAX = 128
# Bytes that an attribute adds to a row besides its key and its text.
_ATTRIBUTE_BYTES = 16
# The attributes that a rejection needs.
_REJECTION_KEYS = ("service.name", "legato.emitter")

Pairs = tuple[tuple[str, str], ...]


def text_pairs(attributes: Iterable[KeyValue]) -> Pairs:
    """Return attributes as pairs of key and text, uncut and in their order."""
    return tuple([(attribute.key, attribute.value.string_value or _text(attribute.value)) for attribute in attributes])


def _text(value: AnyValue) -> str:
    """Return any value as text: numbers in decimal, bytes in base64, all others as JSON."""
    which = value.WhichOneof("value")
    if which in (None, "string_value"):
        return value.string_value
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return {item.key: _plain(item.value) for item in value.kvlist_value.values}
    if which == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, which) if which else None


class Labels:
    """The attributes that all points of one resource, scope or metric share, and the hash of everything that identifies it.

    ``texts`` holds the attributes as rows store them, ``size`` the bytes that they take in a row. ``fault`` is empty, or the reason why no
    row can hold them.
    """

    __slots__ = ("_hash", "digest", "fault", "size", "texts")

    def __init__(self, texts: dict[str, str], fault: str, content: hashlib.blake2b) -> None:
        self.texts, self.size, self.fault, self._hash = texts, _size(texts), fault, content
        self.digest = content.digest()

    def within(self, identity: Any, own: dict[str, str]) -> Labels:
        """Return the labels of a scope or metric inside this one, from its identity and from its own attributes, which override these."""
        texts = {**self.texts, **_cut(own)} if own else self.texts
        fault = self.fault or _fault(texts)
        if fault:
            # These attributes are never stored, and merging thousands of them for every scope would be slow.
            texts = {key: texts[key] for key in _REJECTION_KEYS if key in texts}
        return Labels(texts, fault, self._extended([identity, sorted(own.items())]))

    def hash_of(self, own: dict[str, str]) -> int:
        """Return the hash of the series with these additional attributes."""
        return int.from_bytes(self._extended(sorted(own.items())).digest(), "little")

    def _extended(self, identity: Any) -> hashlib.blake2b:
        out = self._hash.copy()
        out.update(json.dumps(identity).encode())
        return out


def resource_labels(attributes: Iterable[KeyValue]) -> Labels:
    """Return the labels of all points of a resource."""
    return Labels({}, "", hashlib.blake2b(digest_size=8)).within("", dict(text_pairs(attributes)))


def scope_labels(resource: Labels, scope: InstrumentationScope) -> Labels:
    """Return the labels of all points of a scope."""
    return resource.within([scope.name, scope.version], dict(text_pairs(scope.attributes)))


class SeriesIndex:
    """The series of one request, by number.

    ``number`` returns a point's series; the lists hold one value for each series, and ``faults`` the reason for each series with points
    that cannot be stored. The attributes of all series are concatenated in ``keys`` and ``texts``; those of series ``i`` begin at
    ``offsets[i]``. ``bytes_left`` is what the rows of the request may still take for attributes.
    """

    def __init__(self, bytes_left: int) -> None:
        self.bytes_left = bytes_left
        self.hashes: list[int] = []
        self.engines: list[str] = []
        self.hosts: list[str] = []
        self.keys: list[str] = []
        self.texts: list[str] = []
        self.offsets: list[int] = [0]
        self.faults: dict[int, str] = {}
        self._sizes: list[int] = []
        self._numbers: dict[tuple[bytes, Pairs], int] = {}

    def number(self, labels: Labels, attributes: Iterable[KeyValue]) -> int:
        """Return the number of a point's series; -1 when its attributes exceed the bytes that are left to the request."""
        key = (labels.digest, text_pairs(attributes))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._add(labels, dict(key[1]))
        self.bytes_left -= self._sizes[found]
        return found if self.bytes_left >= 0 else -1

    def _add(self, labels: Labels, own: dict[str, str]) -> int:
        number, cut = len(self.hashes), _cut(own)
        merged, size = {**labels.texts, **cut}, labels.size + _size(cut)
        fault = labels.fault or _fault(merged)
        if fault:
            self.faults[number] = fault
            size = 0
        elif size <= self.bytes_left:
            # Beyond the limit nothing is kept: a resource with many attributes would be repeated for every point before it is counted.
            self.keys += merged
            self.texts += merged.values()
        self.offsets.append(len(self.keys))
        self._sizes.append(size)
        self.hashes.append(labels.hash_of(own))
        self.engines.append(merged.get("legato.engine.id", ""))
        self.hosts.append(merged.get("host.name") or merged.get("host.id", ""))
        return number


def _cut(texts: dict[str, str]) -> dict[str, str]:
    long = max(map(len, texts.values()), default=0) > TEXT_CHARACTERS_MAX
    return {key: text[:TEXT_CHARACTERS_MAX] for key, text in texts.items()} if long else texts


def _size(texts: dict[str, str]) -> int:
    return sum(map(len, texts)) + sum(map(len, texts.values())) + _ATTRIBUTE_BYTES * len(texts)


def _fault(texts: dict[str, str]) -> str:
    if len(texts) > ATTRIBUTES_MAX:
        return f"{len(texts)} attributes, at most {ATTRIBUTES_MAX} are stored"
    long = max(map(len, texts), default=0)
    return f"a key of {long} characters, at most {TEXT_CHARACTERS_MAX} are stored" if long > TEXT_CHARACTERS_MAX else ""
