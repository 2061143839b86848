"""Series: whose a data point is.

One idea: a metric, its resource, its scope and a point's own attributes make a series. What a set of attributes says is worked out once
in a request, however many points bring it, and its hash is of the whole set, also of what is cut for the row. What rows repeat of it is
bounded, in one row and over the request. It judges no number.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue

from legato_ingest.otlp.attributes import TEXT_CHARACTERS_MAX

__all__ = ["ATTRIBUTES_MAX", "Origin", "Pairs", "Series", "origin_of", "pairs_of", "scope_origin_of"]

ATTRIBUTES_MAX = 128
# What an attribute costs a row beside its text.
_ATTRIBUTE_BYTES = 16
# What a rejection tells of its emitter.
_TOLD = ("service.name", "legato.emitter")

Pairs = tuple[tuple[str, str], ...]


def pairs_of(attributes: Iterable[KeyValue]) -> Pairs:
    """Attributes as texts, whole and as they came."""
    return tuple([(attribute.key, attribute.value.string_value or _text(attribute.value)) for attribute in attributes])


def _text(value: AnyValue) -> str:
    """Any value as text: numbers as they are written, bytes in base64, the rest as JSON."""
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


class Origin:
    """What the points of one resource, scope or metric share: its attributes, and the hash of all that names it.

    ``texts`` are the attributes as rows keep them, ``size`` is what they take of a row, ``fault`` why no row may have them.
    """

    __slots__ = ("_hash", "digest", "fault", "size", "texts")

    def __init__(self, texts: dict[str, str], fault: str, content: hashlib.blake2b) -> None:
        self.texts, self.size, self.fault, self._hash = texts, _size(texts), fault, content
        self.digest = content.digest()

    def within(self, named: Any, own: dict[str, str]) -> Origin:
        """The origin of what lies inside, by what names it there, with its own attributes over these."""
        texts = {**self.texts, **_cut(own)} if own else self.texts
        fault = self.fault or _fault(texts)
        if fault:
            # Nobody keeps them, and to merge thousands again and again would be slow.
            texts = {key: texts[key] for key in _TOLD if key in texts}
        return Origin(texts, fault, self._fed([named, sorted(own.items())]))

    def hash_of(self, own: dict[str, str]) -> int:
        """The hash of the series that has these attributes of its own."""
        return int.from_bytes(self._fed(sorted(own.items())).digest(), "little")

    def _fed(self, named: Any) -> hashlib.blake2b:
        out = self._hash.copy()
        out.update(json.dumps(named).encode())
        return out


def origin_of(resource: Iterable[KeyValue]) -> Origin:
    """The origin of all points of a resource."""
    return Origin({}, "", hashlib.blake2b(digest_size=8)).within("", dict(pairs_of(resource)))


def scope_origin_of(resource: Origin, scope: InstrumentationScope) -> Origin:
    """The origin of all points of a scope."""
    return resource.within([scope.name, scope.version], dict(pairs_of(scope.attributes)))


class Series:
    """The series of one request, by number; ``bytes_left`` is what all rows together may still repeat of attributes.

    ``index`` gives a point's number, the lists have what each series says, ``faults`` why the points of one cannot be stored. The
    attributes of all lie end to end in ``keys`` and ``texts``, those of each from its place in ``offsets`` on.
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
        self._known: dict[tuple[bytes, Pairs], int] = {}

    def index(self, origin: Origin, attributes: Iterable[KeyValue]) -> int:
        """The number of a point's series; -1 when its attributes are more than this request may still bring."""
        key = (origin.digest, pairs_of(attributes))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._add(origin, dict(key[1]))
        self.bytes_left -= self._sizes[found]
        return found if self.bytes_left >= 0 else -1

    def _add(self, origin: Origin, own: dict[str, str]) -> int:
        number, cut = len(self.hashes), _cut(own)
        merged, size = {**origin.texts, **cut}, origin.size + _size(cut)
        fault = origin.fault or _fault(merged)
        if fault:
            self.faults[number] = fault
            size = 0
        elif size <= self.bytes_left:
            # Beyond it nothing is kept: a resource of many attributes would be repeated for every point before anyone counts.
            self.keys += merged
            self.texts += merged.values()
        self.offsets.append(len(self.keys))
        self._sizes.append(size)
        self.hashes.append(origin.hash_of(own))
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
        return f"{len(texts)} attributes, at most {ATTRIBUTES_MAX} are taken"
    long = max(map(len, texts), default=0)
    return f"a key of {long} characters, at most {TEXT_CHARACTERS_MAX} are taken" if long > TEXT_CHARACTERS_MAX else ""
