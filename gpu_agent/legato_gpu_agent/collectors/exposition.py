"""An engine's page of metrics, read again and again: from text to readings.

One idea: between two readings of a page only the numbers change. What a line is of, all before its number, is judged once, by the official
parser of Prometheus, and only where its family is wanted; a page laid out as the one before is not judged again. It fetches nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import lt
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from legato_gpu_agent.collectors.counter_starts import Counters
from legato_gpu_agent.collectors.layout_cache import Key, Layout, Part
from legato_gpu_agent.collectors.measurement import Attributes, Distribution, Found, Reading
from legato_gpu_agent.engines import Engine, Rule

__all__ = ["BadPage", "Page"]

# Lines that are remembered, and their bytes: a page with more has labels that never end. A busy vLLM's has 51 KB.
_HEADS_MAX, _HEADS_BYTES_MAX = 50_000, 4 * 2**20
# Heads that are remembered though they have left the page, besides as many as it has.
_HEADS_GONE_MAX, _HEADS_GONE_BYTES_MAX = 1_000, 65_536
# Histograms that are remembered though they have left the page, and what is kept of a label's value.
_GONE_MAX, _TEXT_MAX = 1_000, 255
_COUNT_MAX = 2**62
_Before = tuple[int, tuple[float, ...], list[float], float | None]
_PARTS = {"_bucket": "bucket", "_sum": "sum", "_count": "count"}


class BadPage(ValueError):
    """A page that cannot be read; its text says what was found."""


class _Line(NamedTuple):
    """What a line is of. ``rank``: where several ranks tell the same of an engine, which engine, and which of them tells it here."""

    parts: tuple[Part, ...] = ()
    rank: tuple[str, tuple[int, str]] | None = None


_NOTHING = _Line()


class Page:
    """The pages of one engine at ``engine_id``. Not safe for several threads at once."""

    def __init__(self, engine: Engine, engine_id: str) -> None:
        self._engine, self._id = engine, engine_id
        self._rules: dict[str, list[tuple[Rule, str]]] = {}
        for rule in engine.rules:
            parts = _PARTS if rule.signal.kind == "histogram" else {"": ""}
            for suffix, part in parts.items():
                self._rules.setdefault(rule.family + suffix, []).append((rule, part))
        self._heads: dict[bytes, _Line] = {}
        self._heads_bytes = 0
        self._counters = Counters()
        self._before: dict[Key, _Before | None] = {}
        self._read_ns, self._all_known = 0, True
        self._layout = Layout()

    def read(self, text: bytes, now_ns: int) -> list[Found]:
        """What this page tells. Counters begin to count when first seen; of a histogram what came since the page before.

        Raises ``BadPage`` for what is no whole page, or has no family of this engine's.
        """
        if not text.endswith(b"\n"):
            raise BadPage(f"the page is cut off after {len(text):,} bytes: its last line does not end")
        lines = text.split(b"\n")
        lines.pop()
        if not self._layout.fits(lines):
            self._layout = Layout(_lowest([self._known(line) for line in lines]))
            if len(self._heads) > _HEADS_GONE_MAX + 2 * len(lines) or self._heads_bytes > _HEADS_GONE_BYTES_MAX + 2 * len(text):
                self._forget_gone(lines)
        try:
            numbers = self._layout.numbers(lines)
        except ValueError as error:
            raise BadPage(f"a line of {error} ends in no number") from None
        values, histograms = self._layout.values(numbers), self._layout.histograms
        if not values and not any(map(math.isfinite, numbers)):
            raise BadPage(f"none of {len(self._rules)} families of {self._engine.title} is on the page of {len(text):,} bytes")
        out: list[Found] = [self._reading(key, value, now_ns) for key, value in values.items()]
        out += [each for key, bins in histograms.items() if (each := self._distribution(key, bins.read(numbers), now_ns)) is not None]
        if len(self._before) > len(histograms) + _GONE_MAX:
            self._before, self._all_known = {key: before for key, before in self._before.items() if key in histograms}, False
        self._read_ns = now_ns
        return out

    def _known(self, line: bytes) -> tuple[bytes, _Line]:
        """What this line begins with, its number's place being after it, and what it is of. Of what is no line, nothing that a line has."""
        if line[:1] == b"#":
            return b"#", _NOTHING
        head, space, number = line.rpartition(b" ")
        if not head:
            return b"\n" if line else b"", _NOTHING
        known = self._heads.get(head)
        if known is None:
            known = self._judge(head, number)
        return head + space, known

    def _forget_gone(self, lines: Iterable[bytes]) -> None:
        """Lines that come once are not remembered for long."""
        here = {line.rpartition(b" ")[0] for line in lines}
        self._heads = {head: known for head, known in self._heads.items() if head in here}
        self._heads_bytes = sum(map(len, self._heads))

    def _judge(self, head: bytes, number: bytes) -> _Line:
        """What a line with this head is of, from now on."""
        if len(self._heads) >= _HEADS_MAX or self._heads_bytes > _HEADS_BYTES_MAX:
            self._heads.clear()
            self._heads_bytes = 0
        known = _NOTHING
        if head.split(b"{", 1)[0].split(b" ", 1)[0].decode(errors="replace") in self._rules:
            known = self._parsed(head + b" " + number)
        self._heads[head] = known
        self._heads_bytes += len(head)
        return known

    def _parsed(self, line: bytes) -> _Line:
        try:
            ((sample,),) = (family.samples for family in text_string_to_metric_families(line.decode() + "\n"))
        except (ValueError, IndexError, KeyError, UnicodeDecodeError):
            raise BadPage(f"no line of Prometheus's text format: {line[:120]!r}") from None
        if sample.timestamp is not None:
            raise BadPage(f"a line carries a time of its own, as no engine's does: {line[:120]!r}")
        if any(sample.labels.get(label, value) != value for label, value in self._engine.only.items()):
            return _NOTHING
        parts = tuple(self._parts(sample.name, sample.labels))
        rank = sample.labels.get(self._engine.lowest, "")
        return _Line(parts, (self._whose(sample.labels), (len(rank), rank)) if rank and parts else None)

    def _parts(self, name: str, labels: Mapping[str, str]) -> Iterator[Part]:
        for rule, part in self._rules.get(name, ()):
            if all(labels.get(label) == value for label, value in rule.where.items()):
                bound = rule.scale * float(labels.get("le", "inf")) if part == "bucket" else math.inf
                yield Part((rule.signal, self._attributes(rule, labels)), rule.scale, part, bound)

    def _whose(self, labels: Mapping[str, str]) -> str:
        """The engine behind the page: the first has the plain id."""
        rank = labels.get(self._engine.rank, "")[:_TEXT_MAX] if self._engine.rank else ""
        return self._id if rank in ("", "0") else f"{self._id}/{rank}"

    def _attributes(self, rule: Rule, labels: Mapping[str, str]) -> Attributes:
        kept = {attribute: labels[label][:_TEXT_MAX] for label, attribute in rule.keep.items() if labels.get(label)}
        told = {"legato.engine.id": self._whose(labels), "legato.engine.kind": self._engine.kind, **kept, **rule.says}
        return tuple(sorted(told.items()))

    def _reading(self, key: Key, value: float, now_ns: int) -> Reading:
        signal, attributes = key
        since_ns = self._counters.since_ns(key, value, now_ns) if signal.kind == "counter" else 0
        return Reading(signal.name, signal.unit, value, attributes, since_ns)

    def _distribution(self, key: Key, bins: tuple[tuple[float, ...], list[float], float | None], now_ns: int) -> Distribution | None:
        """What came since the page before; nothing on the first, or where nothing came."""
        bounds, below, total = bins
        if not below:
            # It may have counted for long, and how far is not told: what comes next is as on a first page.
            self._before.setdefault(key)
            return None
        before = self._earlier(key, bounds)
        self._before[key] = (now_ns, *bins)
        if before is None:
            return None
        since_ns, earlier_bounds, earlier, earlier_total = before
        if bounds != earlier_bounds or any(map(lt, below, earlier)):
            # The engine started anew after the page before: all that it has counted came since.
            earlier, earlier_total = [0.0] * len(below), 0.0
        elif below == earlier:
            return None
        counts = tuple(_steps_of(int(min(now - then, _COUNT_MAX)) for now, then in zip(below, earlier, strict=True)))
        if not any(counts):
            return None
        finite = tuple(filter(math.isfinite, bounds))
        if len(counts) == len(finite):
            counts = (*counts, 0)
        signal, attributes = key
        came = total - earlier_total if total is not None and earlier_total is not None else None
        return Distribution(signal.name, signal.unit, finite, counts, came, since_ns, attributes)

    def _earlier(self, key: Key, bounds: tuple[float, ...]) -> _Before | None:
        """How far it had counted when it was last told. Many engines make a histogram when they first observe something: one that no page
        had began after the page before, at nothing. Once some were forgotten, nobody knows what no page had.
        """
        if key in self._before or not self._read_ns or not self._all_known:
            return self._before.get(key)
        return self._read_ns, bounds, [0.0] * len(bounds), 0.0


def _lowest(lines: Sequence[tuple[bytes, _Line]]) -> Iterator[tuple[bytes, tuple[Part, ...]]]:
    """Of several ranks that tell the same of an engine, the lowest one's lines alone are of something."""
    least: dict[str, tuple[int, str]] = {}
    for engine, rank in (line.rank for _, line in lines if line.rank is not None):
        least[engine] = min(rank, least.get(engine, rank))
    for head, line in lines:
        yield head, line.parts if line.rank is None or line.rank[1] == least[line.rank[0]] else ()


def _steps_of(cumulative: Iterable[int]) -> Iterator[int]:
    """How many between each bound and the one below; never less than none, whatever a torn page says."""
    below = 0
    for value in cumulative:
        yield max(value - below, 0)
        below = max(value, below)
