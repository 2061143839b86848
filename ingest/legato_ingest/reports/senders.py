"""Who sends spans: Legato's own libraries and others, what is stored of them, what is ignored and why.

The numbers of other libraries are those of the table `emitter_spans`, which counts receipts; the numbers of Legato's own are rows of
streams. The module sends the query and names what the rows of a family cannot say; it judges nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from legato_ingest.emitters import BY_NAME, IGNORED, OWN_PREFIX, STREAMING_UNKNOWN
from legato_ingest.reports.rows import Run

__all__ = ["Sender", "as_json", "fetch"]

_SENDERS = f"""
SELECT
    service_name AS service, if(emitter = '', trimBoth(concat(scope, ' ', scope_version)), emitter) AS sender,
    toUInt64(sumIf(spans, result = 'stored')) AS stored, toUInt64(sumIf(spans, result = 'same_response')) AS same_response,
    toUInt64(sumIf(spans, result = 'ignored')) AS ignored, groupUniqArrayIf(reason, result = 'ignored') AS reasons,
    groupUniqArrayIf(reason, result = 'same_response') AS winners
FROM
(
    SELECT service_name, scope, scope_version, emitter, result, reason, spans
    FROM emitter_spans
    WHERE received_at > now() - INTERVAL {{hours:UInt32}} HOUR
    UNION ALL
    SELECT service_name, '', '', emitter, 'stored', '', uniqExact(trace_id, span_id)
    FROM stream_revs
    WHERE received_at > now() - INTERVAL {{hours:UInt32}} HOUR AND startsWith(emitter, '{OWN_PREFIX}')
    GROUP BY service_name, emitter
)
GROUP BY service, sender
ORDER BY stored DESC, ignored DESC, service, sender
LIMIT 500
"""


@dataclass(frozen=True, slots=True)
class Sender:
    """One sender of spans. ``sender`` is a family of emitters with its version, or the instrumentation scope of spans of no known family.

    ``same_response``: spans of a response of which another row is richer, named in ``winners``. ``reasons`` are why spans were ignored.
    """

    service: str
    sender: str
    stored: int
    same_response: int
    ignored: int
    reasons: list[str]
    winners: list[str]

    @property
    def is_own(self) -> bool:
        """Whether it is one of Legato's own libraries."""
        return self.sender.startswith(OWN_PREFIX)

    @property
    def family(self) -> str:
        """The family of emitters, or the scope."""
        return self.sender.partition("/")[0]

    @property
    def timing(self) -> str:
        """The finest timing that it sends; empty where it is not known."""
        family = BY_NAME.get(self.family)
        return "each chunk" if self.is_own else family.timing if family else ""

    @property
    def missing(self) -> str:
        """What its rows cannot say; empty for Legato's own, and where it is not known."""
        family = BY_NAME.get(self.family)
        return family.missing if family else ""

    @property
    def mend(self) -> str:
        """The smallest change that would add what is missing."""
        family = BY_NAME.get(self.family)
        return family.mend if family else ""

    @property
    def may_be_streams(self) -> bool:
        """Whether spans were ignored that may be streamed responses: their emitter does not say."""
        return STREAMING_UNKNOWN in self.reasons

    @property
    def why_ignored(self) -> list[str]:
        """A sentence for each reason for which its spans were ignored."""
        return [IGNORED.get(each, each) for each in sorted(self.reasons)]


def fetch(run: Run, hours: int) -> list[Sender]:
    """Return the senders of the last hours, those with the most stored streams first."""
    return [Sender(**row) for row in run(_SENDERS, {"hours": hours})]


def as_json(senders: list[Sender]) -> list[dict[str, Any]]:
    """Return the senders for a program."""
    return [{**asdict(each), "timing": each.timing, "missing": each.missing, "mend": each.mend} for each in senders]
