"""The parsed-layout cache: where the used numbers are in an exposition text, and how they add up.

An engine's text has the same lines at every scrape. Whether a text has the same heads as the one before is checked for all lines at once,
in C; then only the used numbers are read, by their positions. The module parses no line: the caller passes the parsed heads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from legato_gpu_agent.collectors.measurement import Attributes
from legato_gpu_agent.engines.signals import Signal

__all__ = ["Bins", "Key", "ParsedLayout", "Part"]

Key = tuple[Signal, Attributes]
"""A signal with its attributes."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a line contributes, times ``scale``, to ``key``; for a histogram ``name`` (bucket, sum or count) and the bucket's bound."""

    key: Key
    scale: float
    name: str = ""
    bound: float = math.inf


class Bins:
    """The lines of one histogram, by their positions among the used numbers."""

    def __init__(self, parts: Iterable[tuple[int, Part]]) -> None:
        places: defaultdict[float, list[int]] = defaultdict(list)
        self._sums = [(place, part.scale) for place, part in parts if part.name == "sum"]
        for place, part in parts:
            if part.name == "bucket":
                places[part.bound].append(place)
        self._bounds = tuple(sorted(places))
        self._places = [places[bound] for bound in self._bounds]
        # The fast case of nearly all texts: one line per bucket.
        self._single = [of[0] for of in self._places] if all(len(of) == 1 for of in self._places) else None

    def read(self, numbers: Sequence[float]) -> tuple[tuple[float, ...], list[float], float | None]:
        """Return the bounds, the cumulative counts and the sum; numbers that are not finite are left out."""
        total = _sum_finite(numbers[place] * scale for place, scale in self._sums)
        if self._single is not None:
            below = [numbers[place] for place in self._single]
            if math.isfinite(sum(below)):
                return self._bounds, below, total
        each = zip(self._bounds, (_sum_finite(numbers[place] for place in places) for places in self._places), strict=True)
        finite = {bound: value for bound, value in each if value is not None}
        return tuple(finite), list(finite.values()), total


def _sum_finite(values: Iterable[float]) -> float | None:
    """Return the sum of the finite values; ``None`` without any."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) if finite else None


class ParsedLayout:
    """The layout of a text: for each of its ``lines``, the head before its number and the parts that it contributes."""

    def __init__(self, lines: Iterable[tuple[bytes, Sequence[Part]]] = ()) -> None:
        self._heads: list[bytes] = []
        self._used: list[tuple[int, int]] = []
        values: defaultdict[Key, list[tuple[int, float]]] = defaultdict(list)
        histograms: defaultdict[Key, list[tuple[int, Part]]] = defaultdict(list)
        for head, parts in lines:
            if parts:
                place = len(self._used)
                self._used.append((len(self._heads), len(head)))
            for part in parts:
                if part.name:
                    histograms[part.key].append((place, part))
                else:
                    values[part.key].append((place, part.scale))
            self._heads.append(head)
        self._blank = self._heads.count(b"")
        self._values: Mapping[Key, list[tuple[int, float]]] = values
        self.histograms: Mapping[Key, Bins] = {key: Bins(parts) for key, parts in histograms.items()}

    def fits(self, lines: Sequence[bytes]) -> bool:
        """Return whether these lines have the heads of this layout, one by one."""
        if len(lines) != len(self._heads) or (self._blank and lines.count(b"") != self._blank):
            return False
        return all(map(bytes.startswith, lines, self._heads))

    def numbers(self, lines: Sequence[bytes]) -> list[float]:
        """Return the used numbers of lines that fit, by position. Raises ``ValueError`` with the family of the first invalid number."""
        try:
            return [float(lines[at][length:]) for at, length in self._used]
        except ValueError:
            raise ValueError(repr(self._first_bad(lines))) from None

    def values(self, numbers: Sequence[float]) -> dict[Key, float]:
        """Return gauges and counters. Several lines of one key are added up, of ratios the largest counts; only finite numbers count."""
        out: dict[Key, float] = {}
        for key, places in self._values.items():
            finite = [value for place, scale in places if math.isfinite(value := numbers[place] * scale)]
            if finite:
                out[key] = max(finite) if key[0].unit == "1" else sum(finite)
        return out

    def _first_bad(self, lines: Sequence[bytes]) -> bytes:
        for at, length in self._used:
            try:
                float(lines[at][length:])
            except ValueError:
                return self._heads[at].split(b"{", 1)[0].strip()[:80]
        return b""
