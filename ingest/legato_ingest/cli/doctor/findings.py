"""Checks and their findings.

A check uses the endpoints and the tokens of emitters and readers, and the files in the settings; it opens no store and changes nothing.
Each check returns one finding: well, a warning, a fault, or skipped with the reason. An unexpected exception in a check is a fault as well,
and the other checks run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal, NamedTuple

import httpx

from legato_ingest.cli.client import Reader
from legato_ingest.errors import LegatoError, SettingsError
from legato_ingest.settings import Settings

__all__ = ["Check", "Finding", "Setup", "State", "examine", "fault", "skipped", "warning", "well"]

State = Literal["well", "warning", "fault", "skipped"]
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and what to do about it (empty where all is well)."""

    check: str
    state: State
    found: str
    todo: str = ""


@dataclass(slots=True)
class Setup:
    """The installation to check: settings, URLs and tokens. ``token`` writes; ``read_token`` reads, or is the readers' password."""

    settings: Settings
    otlp_url: str
    read_url: str
    collector_metrics_url: str = ""
    token: str = ""
    read_token: str = ""
    answers: set[str] = field(default_factory=set)
    """The endpoints that answered earlier checks: checks that need another endpoint are skipped, so that its fault is reported once."""

    @property
    def reader(self) -> Reader:
        """The client of the read endpoint."""
        return Reader(self.read_url, self.settings.read_user, self.read_token)

    def get(self, url: str) -> httpx.Response:
        """GET a URL; the reader's token is sent to the OTLP endpoint only, not to a Collector. Raises ``httpx.TransportError``."""
        own = url.startswith(f"{self.otlp_url}/")
        return _request("GET", url, bearer(self.read_token) if own else {})

    def post(self, url: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
        """POST to the OTLP endpoint with the write token. Raises ``httpx.TransportError``."""
        return _request("POST", url, {**headers, **bearer(self.token)}, content)


class Check(NamedTuple):
    """One check. ``needs``: the endpoint (in ``Setup.answers``) without which the check is skipped."""

    name: str
    run: Callable[[Setup], Finding]
    needs: str = ""


def _request(method: str, url: str, headers: dict[str, str], content: bytes | None = None) -> httpx.Response:
    with _client(url) as client:
        return client.request(method, url, headers=headers, content=content)


def _client(url: str) -> httpx.Client:
    """Return a client with the environment's certificates, and its proxies, except to this host, which a proxy does not reach."""
    is_elsewhere = not _is_this_host(url)
    try:
        return httpx.Client(verify=httpx.create_ssl_context(), trust_env=is_elsewhere, timeout=_TIMEOUT_S)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        # httpx makes the client of each proxy at once.
        raise SettingsError(
            f"a proxy of the environment cannot be used ({error}): unset ALL_PROXY, HTTPS_PROXY or HTTP_PROXY, or set one of HTTP"
        ) from None


def _is_this_host(url: str) -> bool:
    host = httpx.URL(url).host.removesuffix(".")
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def bearer(token: str) -> dict[str, str]:
    """Return the header with a token; empty without one."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def well(check: str, found: str) -> Finding:
    """Return a finding without anything to do."""
    return Finding(check, "well", found)


def warning(check: str, found: str, todo: str) -> Finding:
    """Return a finding that works now, but not for long or not for all."""
    return Finding(check, "warning", found, todo)


def fault(check: str, found: str, todo: str) -> Finding:
    """Return a finding that causes lost, refused or wrong data."""
    return Finding(check, "fault", found, todo)


def skipped(check: str, found: str) -> Finding:
    """Return the finding of a check that could not run or had nothing to check."""
    return Finding(check, "skipped", found)


def examine(setup: Setup, checks: Sequence[Check]) -> Iterator[Finding]:
    """Run the checks, and yield each finding at once."""
    for check in checks:
        if check.needs and check.needs not in setup.answers:
            yield skipped(check.name, f"the {check.needs} does not answer")
            continue
        try:
            yield check.run(setup)
        except LegatoError as error:
            yield fault(check.name, str(error), "repair this, then run `legato doctor` again")
        except Exception as error:
            yield fault(check.name, f"the check itself failed ({type(error).__name__})", "please report this")
