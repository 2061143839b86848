"""The evidence of a verdict in words: the one vocabulary of the command line and the web page.

Each number that has words becomes a phrase without a capital and a full stop; numbers without words are left out. This module judges no
gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from legato_ingest.reports.format import duration

__all__ = ["phrases", "sentences"]

_LENGTHS = {
    "server_gap_us": "the server sent the next chunk after {}",
    "hold_us": "the application held the chunk for {}",
    "record_late_us": "the engine's record arrived {} after its step",
}
_FLAGS = {
    ("buffered", 1): "the stream arrived in releases of several chunks",
    ("buffered", 0): "no usual release of a buffer ended the gap",
    ("unread", 1): "data lay unread in the client's socket",
    ("unread", 0): "no data lay unread in the client's socket",
    ("other_ranks", 1): "another rank of the server had prefill or recompute in these steps, and the ranks wait for each other",
    ("other_ranks", 0): "another rank of the server had prefill or recompute at that time; whether the engine waited for it is not known",
    ("open", 1): "the stream was still silent when this was judged",
}
_COUNTS = {
    "preempted_step": "the request was preempted in step {:,}",
    "caught_up_percent": "{} % of the missing chunks arrived right behind the gap",
    "coincident_stalls": "{:,} other streams had the same gap at the same moment with this cause",
}
_KERNEL = {
    "cpu_wait": "the engine's threads were ready without a CPU for {} in total in the {} around it",
    "cpu_stolen": "CPU time of {} in total was stolen in the {} around it",
}


def phrases(evidence: Mapping[str, int | str]) -> list[str]:
    """Return the evidence of a verdict as phrases, lengths with their units. ``evidence``: numbers by name, or their texts."""
    numbers = {name: int(value) for name, value in evidence.items()}
    out = [words.format(duration(numbers[name])) for name, words in _LENGTHS.items() if numbers.get(name, 0) > 0]
    out += [words.format(numbers[name]) for name, words in _COUNTS.items() if name in numbers]
    out += [words for (name, value), words in _FLAGS.items() if numbers.get(name) == value]
    return [*out, *_throttling(numbers), *_kernel(numbers)]


def sentences(evidence: Mapping[str, int | str]) -> list[str]:
    """Return the phrases as sentences."""
    return [f"{words[0].upper()}{words[1:]}." for words in phrases(evidence)]


def _throttling(numbers: Mapping[str, int]) -> Iterator[str]:
    """The throttling that the driver reported."""
    if "throttled_us" in numbers:
        seen = f", down to {numbers['clock_mhz']:,} MHz" if "clock_mhz" in numbers else ""
        usual = f" of {numbers['clock_usual_mhz']:,} MHz" if seen and "clock_usual_mhz" in numbers else ""
        yield f"the driver throttled a GPU for {duration(numbers['throttled_us'])}{seen}{usual}"


def _kernel(numbers: Mapping[str, int]) -> Iterator[str]:
    """The kernel's counters around a stall of the host."""
    for name, words in _KERNEL.items():
        if f"{name}_us" in numbers and f"{name}_of_us" in numbers:
            yield words.format(duration(numbers[f"{name}_us"]), duration(numbers[f"{name}_of_us"]))
