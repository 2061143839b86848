"""Where the wanted numbers stand on a page of metrics, and what they add up to.

One idea: an engine's page has the same lines every time, so whether a page is laid out as the one before is asked of all its lines at once,
in C; then only the wanted numbers are read, by their places. It judges no line: who made it did.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from legato_gpu_agent.readings import Attributes
from legato_gpu_agent.vocabulary import Signal

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
        buckets = sorted(((part.bound, place) for place, part in parts if part.name == "bucket"), key=itemgetter(0))
        self._sums = [(place, part.scale) for place, part in parts if part.name == "sum"]
        self._bounds: tuple[float, ...] = tuple(dict.fromkeys(bound for bound, _ in buckets))
        index = {bound: at for at, bound in enumerate(self._bounds)}
        # Of each bound one place; where several lines are of one bound, the others are added.
        first = {bound: place for bound, place in reversed(buckets)}
        self._places = [first[bound] for bound in self._bounds]
        self._more = [(index[bound], place) for bound, place in buckets if place != first[bound]]

    def read(self, numbers: Sequence[float]) -> tuple[tuple[float, ...], list[float], float | None]:
        """Bounds, how many were observed up to each, and their sum; what is no finite number is left out."""
        below = [numbers[place] for place in self._places]
        for at, place in self._more:
            below[at] += numbers[place]
        bounds = self._bounds
        if not math.isfinite(sum(below)):
            finite = [(bound, value) for bound, value in zip(bounds, below, strict=True) if math.isfinite(value)]
            bounds, below = tuple(bound for bound, _ in finite), [value for _, value in finite]
        total = sum(numbers[place] * scale for place, scale in self._sums) if self._sums else math.nan
        return bounds, below, total if math.isfinite(total) else None


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
