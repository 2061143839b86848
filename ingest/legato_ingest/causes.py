"""The causes of stalls, as one table.

Attribution, rollups, alert rules, dashboards, the command line and the documentation read this table and keep no list of causes themselves.
To add a cause, add a row. The module imports nothing from the other packages, so all of them can import it.

Rows of ``verdicts`` and the other tables hold names, never positions. The order of the rows is the order of the columns of
``Verdicts.parts``, of the lists in panels, and of the numbers by which an alert rule refers to a cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BY_NAME",
    "CAUSES",
    "COARSE",
    "CORE",
    "DELAYS",
    "END_USER",
    "FIRST_OUTPUT",
    "HEALTHY",
    "MIXED",
    "NAMES",
    "NETWORK_PATH",
    "PARTS",
    "REPLAYABLE",
    "RESPONSES_MAX",
    "STEP_PARTS",
    "UNEXPLAINED",
    "Cause",
    "Rule",
    "excluded_when",
    "index_of",
    "sql_list",
]

RESPONSES_MAX = 16
"""A verdict names so many requests behind its root-cause step at most, as each stall repeats them. With so many there may be more."""

Confidence = Literal["proven", "strong", "likely", "possible", "unknown"]
"""How sure a verdict is, from the surest to the least sure; docs/concepts.md defines the levels."""
Group = Literal["healthy", "core", "server", "path", "client", "side", "several", "none", "no gap"]
"""How a reader groups causes: the healthy step; the engine's core; its front end; the network path; the client; only the side is known;
several causes; nothing is known; causes that no gap has, which only alert rules name."""
Replay = Literal["step", "delay", ""]
"""How a counterfactual removes the cause: it shortens the engine's steps, removes a delay after a step, or is not possible."""
Budget = Literal["service", "end user", "network path", "first output"]
"""Which error budget a stall burns. One of the network path burns the service's budget when it hit several end users at the same time, and
the end user's budget when it hit one."""
Rule = Literal[
    "server on time",
    "no prefill",
    "no recompute",
    "no throttling",
    "duration explained",
    "sent at once",
    "delivered at once",
    "no release",
    "socket empty",
    "socket unread",
    "buffered",
    "no hold",
    "none behind",
    "all behind",
    "counter still",
    "intervals short",
]
"""The observations that exclude causes; ``attribution.model.exclusion`` says when each of them holds."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause.

    ``name`` is stored in columns and map keys. ``meaning`` is one short sentence, ``label`` the name for people in tables, ``needs`` the
    evidence without which a verdict cannot name the cause. ``confidence`` is that of a verdict with all evidence that the cause needs,
    ``by_exclusion`` that of a verdict reached because scraped metrics excluded the other causes (empty: not possible). ``excluded_by`` has
    the sentence for each observation that excludes the cause. ``is_part``: time is charged to the cause, so it has a column in
    ``Verdicts.parts``; the other names stand only in ``cause``.
    """

    name: str
    label: str
    meaning: str
    needs: str
    color: str
    group: Group
    confidence: Confidence = "unknown"
    by_exclusion: Confidence | Literal[""] = ""
    excluded_by: tuple[tuple[Rule, str], ...] = ()
    replay: Replay = ""
    budget: Budget = "service"
    is_part: bool = True


_ON_TIME: tuple[Rule, str] = ("server on time", "the server sent the chunk in time")
_DELIVERED: tuple[Rule, str] = ("delivered at once", "the chunk arrived as soon as it was sent")
_INTERVALS: tuple[Rule, str] = ("intervals short", "the engine had no time between tokens half as long around the gap")
_STEPS_OR_METRICS = "engine steps; with lower confidence the engine's scraped metrics"

# Colours of causes that name an event: the nine of Paul Tol's scheme "muted" (Colour Schemes, SRON/EPS/TN/09-002, 2021), which people with
# colour vision deficiencies can distinguish. Greys: the healthy step, and verdicts that name no event. The last three rows are in no panel
# of stalls; their colours are of the scheme of Okabe and Ito (2008).
CAUSES = (
    Cause(
        name="base",
        label="healthy step",
        meaning="the healthy step: the time that a step with this number of requests takes on this engine",
        needs="engine steps",
        color="#DDDDDD",
        group="healthy",
        confidence="strong",
    ),
    Cause(
        name="scheduling",
        label="prefill of others",
        meaning="another request's prompt was prefilled in the same step",
        needs=_STEPS_OR_METRICS,
        color="#88CCEE",
        group="core",
        confidence="strong",
        by_exclusion="possible",
        excluded_by=(
            _ON_TIME,
            ("no prefill", "no prefill in its steps"),
            ("counter still", "the engine counted no prompt tokens around the gap"),
            _INTERVALS,
        ),
        replay="step",
    ),
    Cause(
        name="kv_pressure",
        label="KV cache pressure",
        meaning="the stream was preempted until it was recomputed, or it waited for the recompute of another request",
        needs=_STEPS_OR_METRICS,
        color="#CC6677",
        group="core",
        confidence="strong",
        by_exclusion="possible",
        excluded_by=(
            _ON_TIME,
            ("no recompute", "no preemption and no recompute in its steps"),
            ("counter still", "the engine counted no preemption around the gap"),
            _INTERVALS,
        ),
        replay="step",
    ),
    Cause(
        name="gpu_clock",
        label="GPU throttling",
        meaning="the step took longer than its work explains while the driver counted a GPU as throttled",
        needs="engine steps and the GPU's samples",
        color="#882255",
        group="core",
        confidence="strong",
        excluded_by=(_ON_TIME, ("no throttling", "no GPU was throttled in its steps"), _INTERVALS),
        replay="step",
    ),
    Cause(
        name="host",
        label="engine's host",
        meaning="the engine's step took longer than its work and its GPU clock explain",
        needs=(
            "engine steps, with the host's samples as further evidence; with lower confidence the engine's scraped metrics and the host's "
            "samples"
        ),
        color="#DDCC77",
        group="core",
        confidence="strong",
        by_exclusion="possible",
        excluded_by=(_ON_TIME, ("duration explained", "the work of its steps explains their duration"), _INTERVALS),
        replay="step",
    ),
    Cause(
        name="front_end",
        label="front end",
        meaning="the step was over, and the server did not send its output",
        needs="the server, and engine steps or the engine's scraped metrics",
        color="#117733",
        group="server",
        confidence="strong",
        by_exclusion="likely",
        excluded_by=(_ON_TIME, ("sent at once", "the output was sent as soon as its step was over")),
        replay="delay",
    ),
    Cause(
        name="coalescing",
        label="buffer",
        meaning="the stream passed through a buffer: nearly all of it arrived in releases of several chunks",
        needs="the server",
        color="#44AA99",
        group="path",
        confidence="strong",
        excluded_by=(_DELIVERED, ("no release", "no usual release of a buffer ended the gap")),
        replay="delay",
    ),
    Cause(
        name="connection",
        label="connection",
        meaning="the bytes were sent and arrived late, without the pattern of a buffer",
        needs="the server",
        color="#AA4499",
        group="path",
        confidence="likely",
        excluded_by=(
            _DELIVERED,
            ("socket unread", "the data lay unread in the socket"),
            ("buffered", "the stream passed through a buffer"),
        ),
        replay="delay",
        budget="network path",
    ),
    Cause(
        name="slow_reader",
        label="unread socket",
        meaning="the bytes lay unread in the client's socket",
        needs="the server and the client's socket",
        color="#332288",
        group="client",
        confidence="strong",
        excluded_by=(_DELIVERED, ("socket empty", "no data lay unread in the socket")),
        replay="delay",
        budget="end user",
    ),
    Cause(
        name="consumer",
        label="application",
        meaning="the application held the stream while more chunks had arrived",
        needs="the client's own record",
        color="#999933",
        group="client",
        confidence="proven",
        excluded_by=(("no hold", "the application did not hold the stream"),),
        replay="delay",
        budget="end user",
    ),
    Cause(
        name="generation",
        label="generated late",
        meaning="the bytes did not exist yet, and nothing shows why",
        needs="the server, or the client alone",
        color="#BBBBBB",
        group="side",
        confidence="strong",
        excluded_by=(("all behind", "the missing chunks arrived right behind the gap"),),
    ),
    Cause(
        name="delivery",
        label="delivered late",
        meaning="the bytes existed and arrived late, and nothing shows why",
        needs="the client alone",
        color="#999999",
        group="side",
        confidence="likely",
        excluded_by=(("none behind", "the missing chunks did not arrive right behind the gap"),),
    ),
    Cause(
        name="unknown",
        label="unknown",
        meaning="the evidence is not sufficient; `missing` lists the absent vantages",
        needs="",
        color="#555555",
        group="none",
    ),
    Cause(
        name="mixed",
        label="several causes",
        meaning="no cause has half of the time beyond `base`",
        needs="",
        color="#777777",
        group="several",
        confidence="strong",
        is_part=False,
    ),
    Cause(
        name="speculation",
        label="rejected drafts",
        meaning="the engine accepted fewer drafted tokens than on average; this slows a stream without a gap",
        needs="engine steps or the engine's scraped metrics",
        color="#E69F00",
        group="no gap",
        is_part=False,
    ),
    Cause(
        name="queue",
        label="queue",
        meaning="the request waited for its first step; this delays the first output",
        needs="the engine's record of the request",
        color="#0072B2",
        group="no gap",
        budget="first output",
        is_part=False,
    ),
    Cause(
        name="render",
        label="rendering",
        meaning="the end user's screen showed the text late; reserved for the vantage `screen`",
        needs="the screen",
        color="#F0E442",
        group="no gap",
        budget="end user",
        is_part=False,
    ),
)

BY_NAME = {cause.name: cause for cause in CAUSES}
NAMES = tuple(BY_NAME)
PARTS = tuple(cause.name for cause in CAUSES if cause.is_part)
"""The causes that time is charged to: the columns of ``Verdicts.parts``."""
HEALTHY = "base"
"""The name of the healthy part of a gap, and of a gap that later evidence showed to be a healthy step."""
MIXED = "mixed"
"""The name of a verdict in which no cause has half of the time."""


def _names(*, group: tuple[Group, ...] = (), replay: Replay = "", budget: Budget | None = None) -> tuple[str, ...]:
    """The names of the causes in one of the groups, with this way to replay them, or of this budget."""
    return tuple(
        cause.name
        for cause in CAUSES
        if cause.group in group or (replay and cause.replay == replay) or (budget is not None and cause.budget == budget)
    )


CORE = _names(replay="step")
"""Causes that lengthen the engine's steps or keep a stream out of them."""
DELAYS = _names(replay="delay")
"""Causes that delay a chunk after the engine produced it."""
REPLAYABLE = (*CORE, *DELAYS)
STEP_PARTS = (HEALTHY, *CORE)
"""The parts that a step's duration is split into."""
COARSE = _names(group=("side", "several"))
"""Verdicts that name a side, or several causes, and no single event."""
UNEXPLAINED = _names(group=("side", "none"))
"""Causes that name no event, because the evidence was not sufficient."""
END_USER = _names(budget="end user")
NETWORK_PATH = _names(budget="network path")
FIRST_OUTPUT = _names(budget="first output")


def index_of(name: str) -> int:
    """The column of ``Verdicts.parts`` that holds a cause. Raises ``ValueError`` for a name that is no part."""
    return PARTS.index(name)


def excluded_when(rule: Rule) -> dict[str, str]:
    """The causes that an observation excludes, each with the sentence for it."""
    return {cause.name: sentence for cause in CAUSES for own, sentence in cause.excluded_by if own == rule}


def sql_list(names: Iterable[str]) -> str:
    """The names as a list of literals in SQL, in parentheses. The names of this table contain no quotes."""
    literals = ", ".join(f"'{name}'" for name in names)
    return f"({literals})"
