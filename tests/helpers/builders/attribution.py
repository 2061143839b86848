"""Small inputs of the attribution model: gaps, steps and vantages of a few entries, in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.gpu_throttle import Throttling
from legato_ingest.attribution.model.joined_steps import JoinedSteps
from legato_ingest.attribution.model.steps import ChargedSteps, StepLimits, StepParts, Steps
from legato_ingest.attribution.model.vantage import Vantage
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import PARTS, index_of

__all__ = ["MS", "charged_steps", "client_gap", "gap", "ints", "joined", "parts_ms", "steps", "throttling", "vantage", "verdict"]

MS = 1_000_000


def ints(*values: float) -> NDArray[np.int64]:
    """These values in ns, given in ms."""
    return np.array([round(value * MS) for value in values], np.int64)


def vantage(*times_ms: float, sizes: Sequence[int] = (), holds_ms: Sequence[float] = (), **more: Any) -> Vantage:
    """Content chunks at these times."""
    return Vantage(ints(*times_ms), np.array(sizes, np.int64), ints(*holds_ms), **more)


def gap(start_ms: float, end_ms: float, sent_ms: float, next_sent_ms: float, **fields: Any) -> Gaps:
    """One gap from ``start_ms`` to ``end_ms`` at the client; the server sent the two chunks at ``sent_ms`` and ``next_sent_ms``.

    ``fields`` replace others of ``Gaps``, times in ms.
    """
    times = {"server_error_ns", "clock_offset_ns", "clock_offset_error_ns", "hold_ns", "usual_ns", "pace_ns"}
    known: dict[str, Any] = {
        "has_client": True,
        "has_server": True,
        **dict.fromkeys(times, 0),
        **dict.fromkeys(("hold_known", "buffered", "unread", "socket_known"), False),
        "caught_up": np.nan,
        "is_open": False,
        "never_preempted": False,
        **fields,
    }
    values: dict[str, Any] = {name: ints(value) if name in times else np.array([value]) for name, value in known.items()}
    return Gaps(ints(start_ms), ints(end_ms), ints(sent_ms), ints(next_sent_ms), **values)


def client_gap(length_ms: float, caught_up: float = np.nan, *, start_ms: float = 0.0, pace_ms: float = 0.0, **fields: Any) -> Gaps:
    """One gap that only the client saw."""
    return gap(start_ms, start_ms + length_ms, 0, 0, has_server=False, caught_up=caught_up, pace_ns=pace_ms, **fields)


def throttling(count: int, *, known: bool = False, hard_ms: float = 0.0, mhz: float = np.nan) -> Throttling:
    """The same throttling in every step."""
    return Throttling(np.full(count, known), np.full(count, hard_ms * MS), np.zeros(count), np.full(count, mhz))


def charged_steps(
    *durations: Mapping[str, float],
    late_ms: Sequence[float] | None = None,
    preempted: Sequence[int] = (),
    resumed: Sequence[int] | None = None,
    missing: Sequence[int] = (),
    unsure: Sequence[int] = (),
    work_steps: int = 5,
    state: Throttling | None = None,
) -> ChargedSteps:
    """Steps that follow each other from 0 ms on, each given by its parts in ms: ``{"base": 10, "host": 300}``.

    ``late_ms``: how late each was recorded (default: at once). ``preempted``: the steps with a preemption. ``resumed``: those that resumed
    a request (default: not reported). ``missing``: the steps before which a record is missing.
    ``unsure``: those that may have waited for another rank.
    """
    count = len(durations)
    parts = StepParts(**{name: ints(*(each.get(name, 0) for each in durations)) for name in StepParts.__dataclass_fields__})
    duration = np.sum([parts.of(name) for name in StepParts.__dataclass_fields__], axis=0)
    end, late = np.cumsum(duration), ints(*(late_ms or [0] * count))
    work = parts.scheduling + parts.kv_pressure
    share = np.divide(parts.kv_pressure, work, out=np.zeros(count), where=work > 0)
    linked = ~np.isin(np.arange(count), missing)
    return ChargedSteps(
        number=np.arange(100, 100 + count),
        recorded_ns=end + late,
        end_ns=end,
        late_ns=late,
        duration_ns=duration,
        median_ns=int(np.median(duration)),
        parts=parts,
        limits=StepLimits(parts.base, work, parts.gpu_clock, share),
        prefill_tokens=(parts.scheduling > 0).astype(float),
        awaited=np.isin(np.arange(count), unsure),
        unsure=np.isin(np.arange(count), unsure),
        preempted=np.isin(np.arange(count), preempted),
        resumed=np.isin(np.arange(count), resumed if resumed is not None else np.arange(count)),
        linked=linked,
        complete=linked,
        fitted=True,
        work_steps=work_steps,
        throttling=state if state is not None else throttling(count),
        usual_mhz=float("nan"),
    )


def joined(steps: ChargedSteps | None, gaps: int = 1) -> JoinedSteps:
    """The steps of one engine, or of none, with this number of gaps."""
    return JoinedSteps.of([steps], [gaps])


def steps(interval_ms: Sequence[float], recorded_ms: Sequence[float], **columns: Sequence[float]) -> Steps:
    """Recorded steps 0, 1, … of 4 decoding requests; ``columns`` replace others of ``Steps``."""
    count = len(interval_ms)
    fours = dict.fromkeys(("running", "decode_requests", "decode_tokens"), [4.0] * count)
    values: dict[str, Any] = {**fours, "preempted": [np.nan] * count, **columns}
    work = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens")
    names = ("running", "waiting", *work, "preempted", "finished")
    return Steps(
        np.array(values.get("number", range(count)), np.int64),
        ints(*recorded_ms),
        MS * np.array(interval_ms, np.float64),
        **{name: np.array(values.get(name, [0.0] * count), np.float64) for name in names},
    )


def verdict(cause: str, parts: Mapping[str, float], **fields: int) -> Verdicts:
    """One verdict with these parts in ms; ``fields`` replace others of ``Verdicts``. It is aligned if it has a ``step_first``."""
    row = np.zeros((1, len(PARTS)), np.int64)
    for name, value in parts.items():
        row[0, index_of(name)] = round(value * MS)
    known = {"step_first": -1, "step_last": -1, "preempted": -1, "corroborated_by": 0, **fields}
    excess = row.sum(axis=1) - row[:, index_of("base")]
    cause_index = np.array([index_of(cause) if cause in PARTS else -1])
    columns = {name: np.array([value]) for name, value in known.items()}
    return Verdicts(row, excess, cause_index, np.ones(1), np.array([known["step_first"] >= 0]), **columns)


def parts_ms(verdicts: Verdicts, row: int = 0) -> dict[str, float]:
    """The parts of a verdict in ms, without zeros."""
    return {name: float(ns) / MS for name, ns in zip(PARTS, verdicts.parts[row], strict=True) if ns}
