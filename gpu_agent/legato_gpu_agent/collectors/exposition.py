"""Reads the Prometheus exposition text of one engine, scrape after scrape, and returns measurements.

Between two scrapes only the numbers change. The part of a line before its number (its head) is parsed once, by Prometheus' official parser,
and only for families that a rule uses; a text with the same lines as the one before is not parsed again (`layout_cache`). The module
fetches nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import lt
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from legato_gpu_agent.collectors.counter_starts import CounterStarts
from legato_gpu_agent.collectors.layout_cache import Key, ParsedLayout, Part
from legato_gpu_agent.collectors.measurement import Attributes, Distribution, Measured, Measurement
from legato_gpu_agent.engines.engine import EngineKind, Rule

__all__ = ["BadExposition", "ExpositionReader"]

# Bounds of the heads that are cached, in lines and bytes: a text beyond them has unbounded labels. A busy vLLM's text has 51 KB.
_HEADS_MAX, _HEADS_BYTES_MAX = 50_000, 4 * 2**20
# Heads that stay cached although they are not in the text, in addition to twice as many as it has.
_HEADS_VANISHED_MAX, _HEADS_VANISHED_BYTES_MAX = 1_000, 65_536
# Histograms kept although they are not in the text, and the maximum length of a label value.
_VANISHED_MAX, _TEXT_MAX = 1_000, 255
_COUNT_MAX = 2**62
_Before = tuple[int, tuple[float, ...], list[float], float | None]
_PARTS = {"_bucket": "bucket", "_sum": "sum", "_count": "count"}


class BadExposition(ValueError):
    """A text that cannot be read; the message says what was found."""


class _Line(NamedTuple):
    """The meaning of a line. ``rank``: where several ranks expose the same value of an engine, the engine and this line's rank."""

    parts: tuple[Part, ...] = ()
    rank: tuple[str, tuple[int, str]] | None = None


_UNUSED = _Line()


class ExpositionReader:
    """Reads the texts of one ``engine`` with the id ``engine_id``. Not safe for several threads at once."""

    def __init__(self, engine: EngineKind, engine_id: str) -> None:
        self._engine, self._id = engine, engine_id
        self._rules: dict[str, list[tuple[Rule, str]]] = {}
        for rule in engine.rules:
            parts = _PARTS if rule.signal.kind == "histogram" else {"": ""}
            for suffix, part in parts.items():
                self._rules.setdefault(rule.family + suffix, []).append((rule, part))
        self._heads: dict[bytes, _Line] = {}
        self._heads_bytes = 0
        self._counters = CounterStarts()
        self._before: dict[Key, _Before | None] = {}
        self._read_ns, self._has_all_before = 0, True
        self._layout = ParsedLayout()

    def read(self, text: bytes, now_ns: int) -> list[Measured]:
        """Return the measurements of this text. A counter starts when first seen; a histogram holds the observations since the last text.

        Raises ``BadExposition`` for a text that is cut off, is malformed, or has no family of this engine.
        """
        if not text.endswith(b"\n"):
            raise BadExposition(f"the exposition text is cut off after {len(text):,} bytes: its last line has no end")
        lines = text.split(b"\n")
        lines.pop()
        if not self._layout.fits(lines):
            self._layout = ParsedLayout(_lowest_ranks([self._known(line) for line in lines]))
            if len(self._heads) > _HEADS_VANISHED_MAX + 2 * len(lines) or self._heads_bytes > _HEADS_VANISHED_BYTES_MAX + 2 * len(text):
                self._evict_vanished(lines)
        try:
            numbers = self._layout.numbers(lines)
        except ValueError as error:
            raise BadExposition(f"a line of {error} does not end in a number") from None
        values, histograms = self._layout.values(numbers), self._layout.histograms
        if not values and not any(map(math.isfinite, numbers)):
            families = f"none of the {len(self._rules)} families of {self._engine.title}"
            raise BadExposition(f"{families} is in the exposition text of {len(text):,} bytes")
        out: list[Measured] = [self._measurement(key, value, now_ns) for key, value in values.items()]
        out += [each for key, bins in histograms.items() if (each := self._distribution(key, bins.read(numbers), now_ns)) is not None]
        if len(self._before) > len(histograms) + _VANISHED_MAX:
            self._before, self._has_all_before = {key: before for key, before in self._before.items() if key in histograms}, False
        self._read_ns = now_ns
        return out

    def _known(self, line: bytes) -> tuple[bytes, _Line]:
        """Return the head of a line, after which its number begins, and its meaning.

        For a comment or a malformed line the head is a prefix that no sample has.
        """
        if line[:1] == b"#":
            return b"#", _UNUSED
        head, space, number = line.rpartition(b" ")
        if not head:
            return b"\n" if line else b"", _UNUSED
        known = self._heads.get(head)
        if known is None:
            known = self._add_head(head, number)
        return head + space, known

    def _evict_vanished(self, lines: Iterable[bytes]) -> None:
        """Remove cached heads that are not in this text."""
        present = {line.rpartition(b" ")[0] for line in lines}
        self._heads = {head: known for head, known in self._heads.items() if head in present}
        self._heads_bytes = sum(map(len, self._heads))

    def _add_head(self, head: bytes, number: bytes) -> _Line:
        """Parse a line with a new head and cache its meaning."""
        if len(self._heads) >= _HEADS_MAX or self._heads_bytes > _HEADS_BYTES_MAX:
            self._heads.clear()
            self._heads_bytes = 0
        known = _UNUSED
        if head.split(b"{", 1)[0].split(b" ", 1)[0].decode(errors="replace") in self._rules:
            known = self._parse(head + b" " + number)
        self._heads[head] = known
        self._heads_bytes += len(head)
        return known

    def _parse(self, line: bytes) -> _Line:
        try:
            ((sample,),) = (family.samples for family in text_string_to_metric_families(line.decode() + "\n"))
        except (ValueError, IndexError, KeyError, UnicodeDecodeError):
            raise BadExposition(f"not a line of Prometheus' text format: {line[:120]!r}") from None
        if sample.timestamp is not None:
            raise BadExposition(f"a line has a timestamp, which no engine writes: {line[:120]!r}")
        if any(sample.labels.get(label, value) != value for label, value in self._engine.required_labels.items()):
            return _UNUSED
        parts = tuple(self._parts(sample.name, sample.labels))
        rank = sample.labels.get(self._engine.lowest_label, "")
        return _Line(parts, (self._owner(sample.labels), (len(rank), rank)) if rank and parts else None)

    def _parts(self, name: str, labels: Mapping[str, str]) -> Iterator[Part]:
        for rule, part in self._rules.get(name, ()):
            # In Prometheus a label that is absent is one with an empty value.
            if all(labels.get(label, "") == value for label, value in rule.where.items()):
                bound = rule.scale * _bound(name, labels.get("le", "inf")) if part == "bucket" else math.inf
                yield Part((rule.signal, self._attributes(rule, labels)), rule.scale, part, bound)

    def _owner(self, labels: Mapping[str, str]) -> str:
        """Return the id of the engine behind the endpoint: the plain id for rank 0, ``id/RANK`` for the others."""
        rank = labels.get(self._engine.rank_label, "")[:_TEXT_MAX] if self._engine.rank_label else ""
        return self._id if rank in ("", "0") else f"{self._id}/{rank}"

    def _attributes(self, rule: Rule, labels: Mapping[str, str]) -> Attributes:
        kept = {attribute: labels[label][:_TEXT_MAX] for label, attribute in rule.keep.items() if labels.get(label)}
        engine = {"legato.engine.id": self._owner(labels), "legato.engine.kind": self._engine.kind}
        return tuple(sorted({**engine, **kept, **rule.attributes}.items()))

    def _measurement(self, key: Key, value: float, now_ns: int) -> Measurement:
        signal, attributes = key
        start_ns = self._counters.start_ns(key, value, now_ns) if signal.kind == "counter" else None
        return Measurement(signal.name, signal.unit, value, attributes, start_ns)

    def _distribution(self, key: Key, bins: tuple[tuple[float, ...], list[float], float | None], now_ns: int) -> Distribution | None:
        """Return the observations since the last text; ``None`` at the first text, or without new observations."""
        bounds, below, total = bins
        if not below:
            # The buckets are not finite numbers, so the counts are unknown: the next text is treated as the first one.
            self._before.setdefault(key)
            return None
        before = self._earlier(key, bounds)
        self._before[key] = (now_ns, *bins)
        if before is None:
            return None
        start_ns, earlier_bounds, earlier, earlier_total = before
        if bounds != earlier_bounds or any(map(lt, below, earlier)):
            # The engine restarted after the last text: all observations are new.
            earlier, earlier_total = [0.0] * len(below), 0.0
        elif below == earlier:
            return None
        counts = tuple(_per_bucket(int(min(now - then, _COUNT_MAX)) for now, then in zip(below, earlier, strict=True)))
        if not any(counts):
            return None
        finite = tuple(filter(math.isfinite, bounds))
        if len(counts) == len(finite):
            counts = (*counts, 0)
        signal, attributes = key
        added = total - earlier_total if total is not None and earlier_total is not None else None
        return Distribution(signal.name, signal.unit, finite, counts, added, start_ns, attributes)

    def _earlier(self, key: Key, bounds: tuple[float, ...]) -> _Before | None:
        """Return the state of a histogram at the last text that had it; ``None`` if it is unknown.

        Many engines create a histogram at its first observation, so one that no text had so far started at 0 after the last text. This
        does not hold once histograms have been removed from the memory.
        """
        if key in self._before or not self._read_ns or not self._has_all_before:
            return self._before.get(key)
        return self._read_ns, bounds, [0.0] * len(bounds), 0.0


def _bound(name: str, text: str) -> float:
    """Return the upper bound of a bucket. Raises ``BadExposition`` for a label that is not a number."""
    try:
        bound = float(text)
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise BadExposition(f"a bucket of {name} has the bound le={text[:40]!r}: expected a number")
    return bound


def _lowest_ranks(lines: Sequence[tuple[bytes, _Line]]) -> Iterator[tuple[bytes, tuple[Part, ...]]]:
    """Yield the lines, without the parts of those that a lower rank of the same engine exposes too."""
    least: dict[str, tuple[int, str]] = {}
    for engine, rank in (line.rank for _, line in lines if line.rank is not None):
        least[engine] = min(rank, least.get(engine, rank))
    for head, line in lines:
        yield head, line.parts if line.rank is None or line.rank[1] == least[line.rank[0]] else ()


def _per_bucket(cumulative: Iterable[int]) -> Iterator[int]:
    """Yield the observations of each bucket, never below 0, from cumulative counts, which may be inconsistent."""
    below = 0
    for value in cumulative:
        yield max(value - below, 0)
        below = max(value, below)
