"""Push dashboards to a running Grafana, and run their queries through it.

It uses Grafana's HTTP API (11.6 to 13) through ``grafana_client``, one request at a time, and yields each result at once. A second push
changes nothing; dashboards and data sources of others are never changed. It installs no alert rules: Grafana reads them from files
(dashboards/README.md).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from legato_ingest.dashboards.files import DashboardQuery, Json
from legato_ingest.dashboards.macros import Range
from legato_ingest.errors import LegatoError
from legato_ingest.settings import Settings

__all__ = ["DEFAULT_URL", "Credential", "DashboardQueryResult", "Done", "Grafana", "GrafanaError", "Source", "Unreachable", "credential_of"]

DEFAULT_URL = "http://127.0.0.1:3000"
UID, TITLE, PLUGIN = "legato", "Legato", "grafana-clickhouse-datasource"
Credential = str | tuple[str, str] | None
_TIMEOUT_S = 70.0
_QUERY_TIMEOUT_S = 60
_POINTS_MAX = 1000
_TEXT_MAX = 400
_NOT_FOUND = 404
_LACKS_PLUGIN = re.compile(r"find .*plugin|plugin .*(not |unavailable)", re.IGNORECASE)


class GrafanaError(LegatoError):
    """Grafana refused or failed. ``status``: of its reply, 0 without a reply; ``reply``: the body."""

    def __init__(self, message: str, status: int = 0, reply: Any = None) -> None:
        super().__init__(message)
        self.status, self.reply = status, reply


class Unreachable(GrafanaError):
    """No Grafana answers, or it rejects the credentials: further requests would fail as well."""


@dataclass(frozen=True, slots=True)
class Source:
    """The data source: a ClickHouse HTTP endpoint, with the URL that Grafana's host uses."""

    url: str
    user: str = ""
    password: str = ""

    def as_json(self) -> Json:
        """Return the data source in the form of the API. Raises ``GrafanaError``."""
        parts = _address(self.url, "--clickhouse", "http://127.0.0.1:8123")
        secure = parts.scheme == "https"
        options: Json = {
            "host": parts.hostname,
            "port": parts.port or (8443 if secure else 8123),
            "protocol": "http",
            "secure": secure,
            "username": self.user,
            "defaultDatabase": "default",
            "dialTimeout": "10",
            "queryTimeout": str(_QUERY_TIMEOUT_S),
        }
        if parts.path.strip("/"):
            options["path"] = parts.path
        secrets = {"password": self.password} if self.password else {}
        named = {"uid": UID, "name": TITLE, "type": PLUGIN, "access": "proxy", "isDefault": False}
        return {**named, "jsonData": options, "secureJsonData": secrets}


@dataclass(frozen=True, slots=True)
class Done:
    """The result for one object: ``created``, ``updated``, ``unchanged``, ``kept``, ``works``, or ``failed`` with an error."""

    what: str
    name: str
    did: str
    url: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class DashboardQueryResult:
    """The result of a query through Grafana: number of rows and seconds, or an error."""

    query: DashboardQuery
    rows: int = 0
    seconds: float = 0.0
    error: str = ""


def credential_of(settings: Settings) -> Credential:
    """Return the token, or user and password, or None. Raises ``GrafanaError``."""
    token, password = (secret.get_secret_value().strip() for secret in (settings.grafana_token, settings.grafana_password))
    if not (token.isascii() and token.isprintable()):
        raise GrafanaError(
            "LEGATO_GRAFANA_TOKEN has characters that no token has: set it to the service account's token exactly as Grafana displayed it"
        )
    if token:
        return token
    if bool(settings.grafana_user) != bool(password):
        raise GrafanaError("only one of LEGATO_GRAFANA_USER and LEGATO_GRAFANA_PASSWORD is set: set both, or LEGATO_GRAFANA_TOKEN alone")
    return (settings.grafana_user, password) if password else None


class Grafana:
    """A client of the Grafana at ``url``, with a time-out per request. Raises ``GrafanaError``; no message contains the credential."""

    def __init__(self, url: str, credential: Credential = None, timeout_s: float = _TIMEOUT_S) -> None:
        parts = _address(url, "--url", DEFAULT_URL)
        self._library = _library()
        self._origin, self._timeout_s = f"{parts.scheme}://{parts.netloc}", timeout_s
        self._where = self._origin + parts.path.rstrip("/")
        self._is_known = credential is not None
        self._api = self._library.GrafanaApi.from_url(self._where + "/", credential, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.client.s.close()

    def push(self, boards: Sequence[Json], source: Source) -> Iterator[Done]:
        """Create or update folder, data source and dashboards; yield each result. Raises ``GrafanaError`` if the rest would fail too."""
        described = source.as_json()
        folder, done = self._folder()
        yield done
        yield from self._source(described)
        for board in boards:
            try:
                yield self._board(board, folder)
            except Unreachable:
                raise
            except GrafanaError as error:
                yield Done("dashboard", board["title"], "failed", error=str(error))

    def expect_source(self) -> None:
        """Raise ``GrafanaError`` unless the data source exists and reaches the store."""
        if self._found(lambda api: api.datasource.get_datasource_by_uid(UID)) is None:
            raise GrafanaError(f"{self._where} has no data source with the uid {UID}: `legato dashboards push` creates it")
        self._health()

    def run(self, query: DashboardQuery, span: Range) -> DashboardQueryResult:
        """Run a query for a time range. Raises ``Unreachable``; every other failure is in the result."""
        if query.error:
            return DashboardQueryResult(query, error=query.error)
        target = {**query.target, "intervalMs": span.interval_ms, "maxDataPoints": _POINTS_MAX}
        body = {"queries": [target], "from": str(span.from_ms), "to": str(span.to_ms)}
        started = time.perf_counter()
        try:
            reply, error = self._call(lambda api: api.client.POST("/ds/query", json=body)), ""
        except Unreachable:
            raise
        except GrafanaError as failed:
            reply, error = failed.reply, str(failed)
        seconds = time.perf_counter() - started
        results = reply.get("results") if isinstance(reply, dict) else None
        result = results.get(target["refId"]) if isinstance(results, dict) else None
        if not isinstance(result, dict):
            return DashboardQueryResult(query, 0, seconds, error or f"{self._where} answered without a result for {target['refId']}")
        error = _line(result["error"]) if result.get("error") else error
        return DashboardQueryResult(query, 0 if error else sum(map(_length, result.get("frames") or ())), seconds, error)

    def _folder(self) -> tuple[str, Done]:
        """The folder's uid, and the result. A folder that Grafana created for the alert rules has this title and another uid."""
        existing = self._found(lambda api: api.folder.get_folder(UID))
        if existing is None:
            named = (each for each in self._call(lambda api: api.folder.get_all_folders(), list) if each.get("title") == TITLE)
            existing = next(named, None)
        did = "kept" if existing else "created"
        existing = existing or self._call(lambda api: api.folder.create_folder(TITLE, uid=UID))
        return str(existing.get("uid", UID)), Done("folder", str(existing.get("title", TITLE)), did, self._link(existing))

    def _source(self, described: Json) -> Iterator[Done]:
        try:
            existing = self._found(lambda api: api.datasource.get_datasource_by_uid(UID))
            if existing is None:
                self._call(lambda api: api.datasource.create_datasource(described))
            elif existing.get("type") != PLUGIN:
                raise GrafanaError(
                    f"the data source with the uid {UID} is a {existing.get('type')}, expected {PLUGIN}: change its uid in Grafana"
                )
            name = TITLE if existing is None else str(existing.get("name"))
            yield Done("data source", name, "created" if existing is None else "kept", f"{self._where}/connections/datasources/edit/{UID}")
            self._health()
            yield Done("data source", name, "works")
        except Unreachable:
            raise
        except GrafanaError as error:
            yield Done("data source", TITLE, "failed", error=str(error))

    def _health(self) -> None:
        try:
            health = self._call(lambda api: api.datasource.health(UID))
            error = "" if health.get("status") == "OK" else _line(health.get("message", health))
        except Unreachable:
            raise
        except GrafanaError as failed:
            error = str(failed)
            if _LACKS_PLUGIN.search(error):
                raise GrafanaError(f"{error}: `grafana cli plugins install {PLUGIN}` (4.20 or newer), then restart Grafana") from None
        if error:
            raise GrafanaError(f"the data source {UID} does not work: {error}; is `legato serve` running where its address says?")

    def _board(self, board: Json, folder: str) -> Done:
        existing = self._found(lambda api: api.dashboard.get_dashboard(board["uid"]))
        stored, meta = (existing.get("dashboard") or {}, existing.get("meta") or {}) if existing else ({}, {})
        if existing and "legato" not in (stored.get("tags") or ()):
            raise GrafanaError(
                f"another dashboard has this uid ({stored.get('title')!r}, without the tag legato): change its uid in Grafana"
            )
        if existing and meta.get("folderUid") == folder and _content(stored) == _content(board):
            return Done("dashboard", board["title"], "unchanged", self._link(meta))
        if meta.get("provisioned"):
            raise GrafanaError("Grafana provisions this dashboard from a file of another version: update the file, or remove its provider")
        body = {"dashboard": {**board, "id": None}, "folderUid": folder, "overwrite": True, "message": "legato dashboards push"}
        saved = self._call(lambda api: api.dashboard.update_dashboard(body))
        return Done("dashboard", board["title"], "updated" if existing else "created", self._link(saved))

    def _link(self, reply: Json) -> str:
        """Grafana returns links relative to the root, including its sub-path."""
        return self._origin + str(reply.get("url") or "/")

    def _found(self, call: Callable[[Any], Any]) -> Json | None:
        try:
            found: Json = self._call(call)
        except GrafanaError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return found

    def _call(self, call: Callable[[Any], Any], kind: type = dict) -> Any:
        """Return the reply to a call if it has this type. Raises ``GrafanaError``."""
        errors = self._library.client
        try:
            reply = call(self._api)
        except errors.GrafanaTimeoutError:
            raise GrafanaError(
                f"{self._where} did not answer within {self._timeout_s:g} s: retry, or query a shorter time range (--since 15m)"
            ) from None
        except errors.GrafanaException as error:
            raise self._refusal(error.status_code, error.response) from None
        except errors.JSONDecodeError:
            raise self._foreign("") from None
        except OSError as error:
            reason = f"no Grafana at {self._where} ({type(error).__name__})"
            raise Unreachable(f"{reason}: start it, or set its address with --url or LEGATO_GRAFANA_URL") from None
        if not isinstance(reply, kind):
            raise self._foreign("")
        return reply

    def _refusal(self, status: int, reply: Any) -> GrafanaError:
        message = _line(reply.get("message") or reply.get("error") or reply) if isinstance(reply, dict) else _line(reply)
        if status == 401:
            found = "rejects this token or user" if self._is_known else "needs credentials"
            wanted = "set LEGATO_GRAFANA_TOKEN to a service account's token, or LEGATO_GRAFANA_USER and LEGATO_GRAFANA_PASSWORD"
            return Unreachable(f"{self._where} {found}: {wanted}", status)
        if status == 403:
            needed = "push needs the role Editor (Admin to create the data source), check needs Viewer"
            return GrafanaError(f"{self._where} does not allow that ({message}): {needed}", status, reply)
        if status == 406:
            return GrafanaError(
                f"Grafana stores it in a newer format than the classic one ({message}): delete it in Grafana, and push again", status
            )
        if not isinstance(reply, dict):
            return self._foreign(f" (status {status})", status)
        return GrafanaError(f"Grafana answered {status}: {message}", status, reply)

    def _foreign(self, status: str, code: int = 0) -> GrafanaError:
        # A web page is not Grafana's "not found": otherwise another server would receive requests to create objects.
        kind = GrafanaError if code >= 500 else Unreachable
        return kind(f"{self._where} answers with a web page{status}, not with Grafana's API: is this Grafana's URL, with its sub-path?")


def _library() -> Any:
    try:
        import grafana_client
        import grafana_client.client
    except ImportError:
        raise GrafanaError("the package grafana-client is missing; in a checkout of Legato: pip install './ingest[grafana]'") from None
    return grafana_client


def _address(url: str, option: str, example: str) -> Any:
    """The parts of a URL. Raises ``GrafanaError``; the message never contains a URL with a secret."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise GrafanaError(f"{option} is not a URL, expected something like {example}") from None
    if "@" in url:
        where = "LEGATO_GRAFANA_TOKEN" if option == "--url" else "LEGATO_READ_USER and LEGATO_READ_PASSWORD"
        raise GrafanaError(
            f"{option} contains a user or a password, which other users of the host can see: remove them, and set {where} instead"
        )
    if not known or parts.query or parts.fragment:
        raise GrafanaError(f"{option} is {url!r}, expected something like {example}")
    return parts


def _content(board: Json) -> Json:
    """A dashboard without the fields that Grafana assigns."""
    return {name: value for name, value in board.items() if name not in ("id", "version")}


def _length(frame: Any) -> int:
    values = frame.get("data", {}).get("values") or [[]]
    return len(values[0])


def _line(text: Any) -> str:
    """A received text as one line of at most 400 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= _TEXT_MAX else line[: _TEXT_MAX - 2] + " …"
