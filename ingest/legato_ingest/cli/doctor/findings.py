"""`legato doctor`: what is wrong with a set-up, and what to do.

One idea: it stands where a stranger stands. It asks the doors that emitters and readers ask, with the tokens that they would give, and
reads the files that the settings name; it opens no store and changes nothing. Each check ends in one finding: well, a warning, a fault, or
not looked at and why. A check that fails in a way that nobody thought of is a fault too, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import httpx

from legato_ingest.cli.client import Reader
from legato_ingest.errors import LegatoError
from legato_ingest.settings import Settings

__all__ = ["Check", "Finding", "Setup", "State", "examine", "fault", "skipped", "warning", "well"]

State = Literal["well", "warning", "fault", "skipped"]
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it (nothing where all is well)."""

    check: str
    state: State
    found: str
    todo: str = ""


@dataclass(slots=True)
class Setup:
    """What is examined: settings, and where the doors are. ``token`` writes, ``read_token`` reads (or is the readers' password)."""

    settings: Settings
    otlp_url: str
    read_url: str
    collector_metrics_url: str = ""
    token: str = ""
    read_token: str = ""
    answers: set[str] = field(default_factory=set)
    """What earlier checks learnt, so that a door that is shut is told once and not by everybody who would go through it."""

    @property
    def reader(self) -> Reader:
        """The read door."""
        return Reader(self.read_url, self.settings.read_user, self.read_token)

    def get(self, url: str) -> httpx.Response:
        """A page of the OTLP door, with the reader's token, or of a Collector, whom it is none of. Raises ``httpx.TransportError``."""
        own = url.startswith(f"{self.otlp_url}/")
        return httpx.get(url, headers=bearer(self.read_token) if own else {}, timeout=_TIMEOUT_S)

    def post(self, url: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
        """Something for the OTLP door. Raises ``httpx.TransportError``."""
        return httpx.post(url, content=content, headers={**headers, **bearer(self.token)}, timeout=_TIMEOUT_S)


class Check(NamedTuple):
    """What looks at one thing. ``needs``: the door (of ``Setup.answers``) without which there is nothing to look at."""

    name: str
    look: Callable[[Setup], Finding]
    needs: str = ""


def bearer(token: str) -> dict[str, str]:
    """The header that gives a token, where there is one."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def well(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check, "well", found)


def warning(check: str, found: str, todo: str) -> Finding:
    """It works, and will not for long, or not for everybody."""
    return Finding(check, "warning", found, todo)


def fault(check: str, found: str, todo: str) -> Finding:
    """Something is lost, refused or wrong because of it."""
    return Finding(check, "fault", found, todo)


def skipped(check: str, found: str) -> Finding:
    """It could not be looked at, or there is nothing to look at."""
    return Finding(check, "skipped", found)


def examine(setup: Setup, checks: Sequence[Check]) -> Iterator[Finding]:
    """Each check's finding, as it comes."""
    for check in checks:
        if check.needs and check.needs not in setup.answers:
            yield skipped(check.name, f"the {check.needs} does not answer")
            continue
        try:
            yield check.look(setup)
        except LegatoError as error:
            yield fault(check.name, str(error), "mend that, and ask again")
        except Exception as error:
            yield fault(check.name, f"the check itself failed ({type(error).__name__})", "please report this")
