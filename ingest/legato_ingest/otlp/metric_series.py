"""The series of data points: a metric with its resource, scope and point attributes.

A set of attributes is evaluated once in a request, however many points carry it. The hash of a series covers the complete set, including
the parts of texts that are cut in the row. The attributes of one point, and the memory of all series, are bounded. The module does not look
at the numbers of points.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue

from legato_ingest.otlp.attributes import TEXT_CHARACTERS_MAX

__all__ = ["ATTRIBUTES_MAX", "Labels", "Pairs", "SeriesIndex", "bytes_of", "resource_labels", "scope_labels", "text_pairs"]

ATTRIBUTES_MAX = 128
# More attributes of a resource, a scope or a point, repeated keys included, are not even read; nor is an array or a map of more bytes,
# because its text takes up to sixteen times as much memory while it is made.
_READ_MAX, _NESTED_BYTES_MAX = 16_384, 65_536
# Bytes that an attribute adds to a row besides its key and its text.
_ATTRIBUTE_BYTES = 16
# The attributes that a rejection needs.
_REJECTION_KEYS = ("service.name", "legato.emitter")

Pairs = tuple[tuple[str, str], ...]


class _TooLong(ValueError):
    """An array or a map that is not read."""


def text_pairs(attributes: Iterable[KeyValue]) -> Pairs:
    """Return attributes as pairs of key and text, uncut and in their order."""
    return tuple([(attribute.key, attribute.value.string_value or _text(attribute.value)) for attribute in attributes])


def _text(value: AnyValue) -> str:
    """Return any value as text: numbers in decimal, bytes in base64, all others as JSON."""
    which = value.WhichOneof("value")
    if which in (None, "string_value"):
        return value.string_value
    if which in ("array_value", "kvlist_value") and value.ByteSize() > _NESTED_BYTES_MAX:
        raise _TooLong
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


def _read(attributes: Sequence[KeyValue]) -> tuple[Pairs, str]:
    """Return attributes as pairs, or the reason why they cannot be read."""
    if len(attributes) > _READ_MAX:
        return (), f"{len(attributes)} attributes, at most {ATTRIBUTES_MAX} are stored"
    try:
        return text_pairs(attributes), ""
    except _TooLong:
        return (), f"an array or a map of more than {_NESTED_BYTES_MAX} bytes"


class Labels:
    """The attributes that all points of one resource, scope or metric share, and the hash of everything that identifies it.

    ``texts`` holds the attributes as rows store them, ``size`` the bytes that they take in a row. ``fault`` is empty, or the reason why no
    row can hold them.
    """

    __slots__ = ("_hash", "digest", "fault", "size", "texts")

    def __init__(self, texts: dict[str, str], size: int, fault: str, content: hashlib.blake2b) -> None:
        self.texts, self.size, self.fault, self._hash = texts, size, fault, content
        self.digest = content.digest()

    def within(self, identity: Any, own: dict[str, str], fault: str = "") -> Labels:
        """Return the labels of a scope or metric inside this one, from its identity and from its own attributes, which override these.

        ``fault``: the reason why its attributes cannot be read.
        """
        texts, size = self.texts, self.size
        if own:
            texts = {**texts, **_cut(own)}
            size = _size(texts)
        fault = self.fault or fault or _fault(texts)
        if fault:
            # These attributes are never stored, and merging thousands of them for every scope would be slow.
            texts = {key: texts[key] for key in _REJECTION_KEYS if key in texts}
            size = _size(texts)
        return Labels(texts, size, fault, self._extended([identity, sorted(own.items())]))

    def hash_of(self, own: dict[str, str]) -> int:
        """Return the hash of the series with these additional attributes."""
        return int.from_bytes(self._extended(sorted(own.items())).digest(), "little")

    def _extended(self, identity: Any) -> hashlib.blake2b:
        out = self._hash.copy()
        out.update(json.dumps(identity).encode())
        return out


def resource_labels(attributes: Sequence[KeyValue]) -> Labels:
    """Return the labels of all points of a resource."""
    own, fault = _read(attributes)
    return Labels({}, 0, "", hashlib.blake2b(digest_size=8)).within("", dict(own), fault)


def scope_labels(resource: Labels, scope: InstrumentationScope) -> Labels:
    """Return the labels of all points of a scope."""
    own, fault = _read(scope.attributes)
    return resource.within([scope.name, scope.version], dict(own), fault)


class SeriesIndex:
    """The series of one request, by number, of which the attributes take at most ``bytes_max``.

    ``number`` returns a point's series; the lists hold one value for each series, ``faults`` the reason for each series with points that
    cannot be stored, and ``beyond`` the series beyond ``bytes_max``. The attributes of all series are concatenated in ``keys`` and
    ``texts``; those of series ``i`` begin at ``offsets[i]``. ``sizes`` holds the bytes that a series takes in a row, ``own_sizes`` those
    of the attributes that its points carry themselves.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self.hashes: list[int] = []
        self.engines: list[str] = []
        self.hosts: list[str] = []
        self.keys: list[str] = []
        self.texts: list[str] = []
        self.offsets: list[int] = [0]
        self.sizes: list[int] = []
        self.own_sizes: list[int] = []
        self.faults: dict[int, str] = {}
        self.beyond: list[int] = []
        self._numbers: dict[tuple[bytes, Pairs], int] = {}

    def number(self, labels: Labels, attributes: Sequence[KeyValue]) -> int:
        """Return the number of a point's series."""
        own, fault = _read(attributes) if attributes else ((), "")
        # Series that cannot be read are one.
        key = (labels.digest, own if not fault else ((fault, ""),))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._add(labels, dict(own), fault)
        return found

    def _add(self, labels: Labels, own: dict[str, str], fault: str) -> int:
        number, cut = len(self.hashes), _cut(own)
        own_size = _size(cut)
        merged, size = {**labels.texts, **cut}, labels.size + own_size
        fault = labels.fault or fault or _fault(merged)
        engine, host = merged.get("legato.engine.id", ""), merged.get("host.name") or merged.get("host.id", "")
        if fault:
            self.faults[number], size = fault, 0
        elif size > self._bytes_left:
            # Nothing is kept: a resource with many attributes would be repeated for every point before it is counted.
            self.beyond.append(number)
        else:
            self._bytes_left -= size
            self.keys += merged
            self.texts += merged.values()
        self.offsets.append(len(self.keys))
        self.sizes.append(size + bytes_of(engine) + bytes_of(host))
        self.own_sizes.append(own_size)
        self.hashes.append(labels.hash_of(own))
        self.engines.append(engine)
        self.hosts.append(host)
        return number


def _cut(texts: dict[str, str]) -> dict[str, str]:
    long = max(map(len, texts.values()), default=0) > TEXT_CHARACTERS_MAX
    return {key: text[:TEXT_CHARACTERS_MAX] for key, text in texts.items()} if long else texts


def _size(texts: dict[str, str]) -> int:
    return bytes_of("".join(texts)) + bytes_of("".join(texts.values())) + _ATTRIBUTE_BYTES * len(texts)


def bytes_of(text: str) -> int:
    """Return the bytes of a text in a row."""
    return len(text) if text.isascii() else len(text.encode())


def _fault(texts: dict[str, str]) -> str:
    if len(texts) > ATTRIBUTES_MAX:
        return f"{len(texts)} attributes, at most {ATTRIBUTES_MAX} are stored"
    long = max(map(len, texts), default=0)
    return f"a key of {long} characters, at most {TEXT_CHARACTERS_MAX} are stored" if long > TEXT_CHARACTERS_MAX else ""
