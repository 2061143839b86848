"""Where the wanted numbers stand on a page of metrics, and what they add up to.

One idea: an engine's page has the same lines every time, so whether a page is laid out as the one before is asked of all its lines at once,
in C; then only the wanted numbers are read, by their places. It judges no line: who made it did.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from legato_gpu_agent.collectors.measurement import Attributes
from legato_gpu_agent.engines.signals import Signal

__all__ = ["Bins", "Key", "Layout", "Part"]

Key = tuple[Signal, Attributes]
"""A signal, and of what."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a wanted line adds to, times ``scale``: which signal, of which attributes; for a histogram which part, and up to which bound."""

    key: Key
    scale: float
    name: str = ""
    bound: float = math.inf


class Bins:
    """The lines of one histogram, by their places."""

    def __init__(self, parts: Iterable[tuple[int, Part]]) -> None:
        places: defaultdict[float, list[int]] = defaultdict(list)
        self._sums = [(place, part.scale) for place, part in parts if part.name == "sum"]
        for place, part in parts:
            if part.name == "bucket":
                places[part.bound].append(place)
        self._bounds = tuple(sorted(places))
        self._places = [places[bound] for bound in self._bounds]
        # As on almost every page.
        self._one_each = [of[0] for of in self._places] if all(len(of) == 1 for of in self._places) else None

    def read(self, numbers: Sequence[float]) -> tuple[tuple[float, ...], list[float], float | None]:
        """Bounds, how many were observed up to each, and their sum; what is no finite number is left out."""
        total = _added(numbers[place] * scale for place, scale in self._sums)
        if self._one_each is not None:
            below = [numbers[place] for place in self._one_each]
            if math.isfinite(sum(below)):
                return self._bounds, below, total
        each = zip(self._bounds, (_added(numbers[place] for place in places) for places in self._places), strict=True)
        told = {bound: value for bound, value in each if value is not None}
        return tuple(told), list(told.values()), total


def _added(values: Iterable[float]) -> float | None:
    """The sum of those that are finite; nothing where none is."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) if finite else None


class Layout:
    """Of a page's ``lines`` (without their ends), each with what it begins with before its number, and the parts that it is."""

    def __init__(self, lines: Iterable[tuple[bytes, Sequence[Part]]] = ()) -> None:
        self._heads: list[bytes] = []
        self._wanted: list[tuple[int, int]] = []
        values: defaultdict[Key, list[tuple[int, float]]] = defaultdict(list)
        histograms: defaultdict[Key, list[tuple[int, Part]]] = defaultdict(list)
        for head, parts in lines:
            if parts:
                place = len(self._wanted)
                self._wanted.append((len(self._heads), len(head)))
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
        """Whether these lines begin as those that it was made of, one by one."""
        if len(lines) != len(self._heads) or (self._blank and lines.count(b"") != self._blank):
            return False
        return all(map(bytes.startswith, lines, self._heads))

    def numbers(self, lines: Sequence[bytes]) -> list[float]:
        """The wanted numbers of lines that fit, by their places. Raises ``ValueError`` with the name of the first that is none."""
        try:
            return [float(lines[at][length:]) for at, length in self._wanted]
        except ValueError:
            raise ValueError(repr(self._first_bad(lines))) from None

    def values(self, numbers: Sequence[float]) -> dict[Key, float]:
        """Gauges and counters: several lines of one are added up, of ratios the largest counts; what is no finite number is left out."""
        out: dict[Key, float] = {}
        for key, places in self._values.items():
            told = [value for place, scale in places if math.isfinite(value := numbers[place] * scale)]
            if told:
                out[key] = max(told) if key[0].unit == "1" else sum(told)
        return out

    def _first_bad(self, lines: Sequence[bytes]) -> bytes:
        for at, length in self._wanted:
            try:
                float(lines[at][length:])
            except ValueError:
                return self._heads[at].split(b"{", 1)[0].strip()[:80]
        return b""
