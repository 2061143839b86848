"""Puts the dashboards into a running Grafana, and asks it what they ask.

One idea: Grafana is asked over its HTTP API by `grafana_client`, one thing at a time, and each answer is told as it comes: what was done,
how many rows there are, or in one sentence why not. A second push changes nothing; nobody else's dashboard or data source is touched. It
installs no alert rules: Grafana reads those from files (`dashboards/README.md`). Source: Grafana's HTTP API, 11.6 to 13.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from legato_ingest.cli.grafana.dashboard_files import Json, Question
from legato_ingest.cli.grafana.macros import Range
from legato_ingest.errors import LegatoError
from legato_ingest.settings import Settings

__all__ = ["DEFAULT_URL", "Answer", "Credential", "Done", "Grafana", "GrafanaError", "Source", "Unreachable", "credential_of"]

DEFAULT_URL = "http://127.0.0.1:3000"
UID, TITLE, PLUGIN = "legato", "Legato", "grafana-clickhouse-datasource"
Credential = str | tuple[str, str] | None
_TIMEOUT_S = 70.0
_QUERY_TIMEOUT_S = 60
_POINTS_MAX = 1000
_WORDS_MAX = 400
_NOT_FOUND = 404
_LACKS_PLUGIN = re.compile(r"find .*plugin|plugin .*(not |unavailable)", re.IGNORECASE)


class GrafanaError(LegatoError):
    """What Grafana would not do. ``status`` is its reply's, 0 where there was none; ``reply`` the body."""

    def __init__(self, message: str, status: int = 0, reply: Any = None) -> None:
        super().__init__(message)
        self.status, self.reply = status, reply


class Unreachable(GrafanaError):
    """No Grafana answers, or it does not know who asks: no other request will fare better."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where Grafana finds the store: a ClickHouse-HTTP endpoint as Grafana's machine sees it."""

    url: str
    user: str = ""
    password: str = ""

    def as_json(self) -> Json:
        """The data source as the API takes it. Raises ``GrafanaError``."""
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
    """What was done to one thing: ``created``, ``updated``, ``unchanged``, ``kept``, ``works`` or ``failed``, and then why."""

    what: str
    name: str
    did: str
    url: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What Grafana answered to a question: so many rows in so many seconds, or an error."""

    question: Question
    rows: int = 0
    seconds: float = 0.0
    error: str = ""


def credential_of(settings: Settings) -> Credential:
    """A token, or user and password, or nobody. Raises ``GrafanaError``."""
    token, password = (secret.get_secret_value().strip() for secret in (settings.grafana_token, settings.grafana_password))
    if not (token.isascii() and token.isprintable()):
        raise GrafanaError(
            "LEGATO_GRAFANA_TOKEN has characters that no token has: set it to a service account's token as Grafana showed it"
        )
    if token:
        return token
    if bool(settings.grafana_user) != bool(password):
        raise GrafanaError("only one of LEGATO_GRAFANA_USER and LEGATO_GRAFANA_PASSWORD is set: set both, or LEGATO_GRAFANA_TOKEN alone")
    return (settings.grafana_user, password) if password else None


class Grafana:
    """A Grafana at ``url``; one that waits ``timeout_s`` for each answer. Raises ``GrafanaError``, and no message holds the credential."""

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
        """Put the folder, the data source and these dashboards there, and tell of each. Raises ``GrafanaError`` where none can follow."""
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
        """Raises ``GrafanaError`` unless the data source is there and can ask the store."""
        if self._found(lambda api: api.datasource.get_datasource_by_uid(UID)) is None:
            raise GrafanaError(f"{self._where} has no data source with the uid {UID}: `legato dashboards push` makes it")
        self._health()

    def ask(self, question: Question, span: Range) -> Answer:
        """Ask what a panel asks, for a range of time. Raises ``Unreachable``; any other failure is the answer's."""
        if question.error:
            return Answer(question, error=question.error)
        query = {**question.target, "intervalMs": span.interval_ms, "maxDataPoints": _POINTS_MAX}
        body = {"queries": [query], "from": str(span.from_ms), "to": str(span.to_ms)}
        started = time.perf_counter()
        try:
            reply, error = self._asked(lambda api: api.client.POST("/ds/query", json=body)), ""
        except Unreachable:
            raise
        except GrafanaError as failed:
            reply, error = failed.reply, str(failed)
        seconds = time.perf_counter() - started
        results = reply.get("results") if isinstance(reply, dict) else None
        result = results.get(query["refId"]) if isinstance(results, dict) else None
        if not isinstance(result, dict):
            return Answer(question, 0, seconds, error or f"{self._where} answered without a result for {query['refId']}")
        error = _line(result["error"]) if result.get("error") else error
        return Answer(question, 0 if error else sum(map(_length, result.get("frames") or ())), seconds, error)

    def _folder(self) -> tuple[str, Done]:
        """The folder's uid, and what was done. One that Grafana made for the alert rules has our title, and a uid of its own."""
        there = self._found(lambda api: api.folder.get_folder(UID))
        if there is None:
            named = (each for each in self._asked(lambda api: api.folder.get_all_folders(), list) if each.get("title") == TITLE)
            there = next(named, None)
        did = "kept" if there else "created"
        there = there or self._asked(lambda api: api.folder.create_folder(TITLE, uid=UID))
        return str(there.get("uid", UID)), Done("folder", str(there.get("title", TITLE)), did, self._link(there))

    def _source(self, described: Json) -> Iterator[Done]:
        try:
            there = self._found(lambda api: api.datasource.get_datasource_by_uid(UID))
            if there is None:
                self._asked(lambda api: api.datasource.create_datasource(described))
            elif there.get("type") != PLUGIN:
                raise GrafanaError(f"the data source with the uid {UID} is a {there.get('type')}, expected {PLUGIN}: give it another uid")
            name = TITLE if there is None else str(there.get("name"))
            yield Done("data source", name, "created" if there is None else "kept", f"{self._where}/connections/datasources/edit/{UID}")
            self._health()
            yield Done("data source", name, "works")
        except Unreachable:
            raise
        except GrafanaError as error:
            yield Done("data source", TITLE, "failed", error=str(error))

    def _health(self) -> None:
        try:
            health = self._asked(lambda api: api.datasource.health(UID))
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
        there = self._found(lambda api: api.dashboard.get_dashboard(board["uid"]))
        stored, meta = (there.get("dashboard") or {}, there.get("meta") or {}) if there else ({}, {})
        if there and "legato" not in (stored.get("tags") or ()):
            raise GrafanaError(
                f"its uid is another dashboard's there ({stored.get('title')!r}, without the tag legato): give that one another"
            )
        if there and meta.get("folderUid") == folder and _content(stored) == _content(board):
            return Done("dashboard", board["title"], "unchanged", self._link(meta))
        if meta.get("provisioned"):
            raise GrafanaError("Grafana reads it from a file, which is another version: update that file, or take its provider away")
        body = {"dashboard": {**board, "id": None}, "folderUid": folder, "overwrite": True, "message": "legato dashboards push"}
        saved = self._asked(lambda api: api.dashboard.update_dashboard(body))
        return Done("dashboard", board["title"], "updated" if there else "created", self._link(saved))

    def _link(self, reply: Json) -> str:
        """Grafana's own links begin at the root, with its sub-path where it has one."""
        return self._origin + str(reply.get("url") or "/")

    def _found(self, call: Callable[[Any], Any]) -> Json | None:
        try:
            found: Json = self._asked(call)
        except GrafanaError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return found

    def _asked(self, call: Callable[[Any], Any], kind: type = dict) -> Any:
        """The reply to a call, of this kind. Raises ``GrafanaError``."""
        errors = self._library.client
        try:
            reply = call(self._api)
        except errors.GrafanaTimeoutError:
            raise GrafanaError(f"{self._where} did not answer within {self._timeout_s:g} s: ask for less (--since 15m), or again") from None
        except errors.GrafanaException as error:
            raise self._refusal(error.status_code, error.response) from None
        except errors.JSONDecodeError:
            raise self._foreign("") from None
        except OSError as error:
            reason = f"no Grafana at {self._where} ({type(error).__name__})"
            raise Unreachable(f"{reason}: start it, or say where it is with --url or LEGATO_GRAFANA_URL") from None
        if not isinstance(reply, kind):
            raise self._foreign("")
        return reply

    def _refusal(self, status: int, reply: Any) -> GrafanaError:
        message = _line(reply.get("message") or reply.get("error") or reply) if isinstance(reply, dict) else _line(reply)
        if status == 401:
            found = "does not know this token or user" if self._is_known else "wants to know who asks"
            wanted = "set LEGATO_GRAFANA_TOKEN to a service account's token, or LEGATO_GRAFANA_USER and LEGATO_GRAFANA_PASSWORD"
            return Unreachable(f"{self._where} {found}: {wanted}", status)
        if status == 403:
            needed = "pushing needs the role Editor, and Admin once, for the data source; checking needs Viewer"
            return GrafanaError(f"{self._where} does not allow that ({message}): {needed}", status, reply)
        if status == 406:
            return GrafanaError(
                f"it is kept there in a newer form than the classic one ({message}): delete it there, and push again", status
            )
        if not isinstance(reply, dict):
            return self._foreign(f" (status {status})", status)
        return GrafanaError(f"Grafana answered {status}: {message}", status, reply)

    def _foreign(self, status: str, code: int = 0) -> GrafanaError:
        # A page is no Grafana's "not found": else another server would be asked to create things.
        kind = GrafanaError if code >= 500 else Unreachable
        return kind(f"{self._where} answers with a page{status}, not as Grafana's API: is it Grafana's, with its sub-path?")


def _library() -> Any:
    try:
        import grafana_client
        import grafana_client.client
    except ImportError:
        raise GrafanaError("grafana-client is not installed, which asks Grafana: pip install 'legato-ingest[grafana]'") from None
    return grafana_client


def _address(url: str, option: str, example: str) -> Any:
    """The parts of a URL. Raises ``GrafanaError``, whose message never repeats a URL with a secret in it."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise GrafanaError(f"{option} is no URL, expected something like {example}") from None
    if "@" in url:
        where = "LEGATO_GRAFANA_TOKEN" if option == "--url" else "LEGATO_READ_USER and LEGATO_READ_PASSWORD"
        raise GrafanaError(f"{option} holds a user or a password, which others can see: leave them out, and set {where}")
    if not known or parts.query or parts.fragment:
        raise GrafanaError(f"{option} is {url!r}, expected something like {example}")
    return parts


def _content(board: Json) -> Json:
    """A dashboard without what Grafana counts itself."""
    return {name: value for name, value in board.items() if name not in ("id", "version")}


def _length(frame: Any) -> int:
    values = frame.get("data", {}).get("values") or [[]]
    return len(values[0])


def _line(words: Any) -> str:
    """Somebody else's words in one short line."""
    line = " ".join(str(words).split())
    return line if len(line) <= _WORDS_MAX else line[: _WORDS_MAX - 2] + " …"
