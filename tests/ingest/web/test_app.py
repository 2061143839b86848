"""Tests of the web page's server: what it sends, what it refuses, and that a panel's result is that of the read endpoint."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from helpers.repo.repository import ROOT
from helpers.servers.reading import open_store, read_app, stream, streams_in
from helpers.servers.serving import served
from legato_ingest.auth.tokens import add, remove
from legato_ingest.dashboards.files import load as load_boards
from legato_ingest.dashboards.macros import Range, expand
from legato_ingest.metrics import Metrics
from legato_ingest.query.reads import Reads
from legato_ingest.settings import Settings, load
from legato_ingest.storage import Store
from legato_ingest.web.app import create_app
from legato_ingest.web.panel_queries import Boards

BOARDS = load_boards(ROOT / "dashboards")
PASSWORD = "a long enough password"
NOW_MS = 1_800_000_000_000
PAGES = (
    "/", "/d/legato-streams", "/d/legato-streams/x?from=now-1h", "/stream/00ff", "/incident", "/sql", "/blame", "/static/main.js",
    "/static/vendor/plotly.min.js",
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a few streams."""
    with open_store(tmp_path_factory.mktemp("web") / "store") as opened:
        streams_in(opened, [stream() for _ in range(5)])
        yield opened


@contextlib.contextmanager
def web(store: Store, **settings: Any) -> Iterator[httpx.Client]:
    """A client of the web page over a store."""
    chosen: Settings = load(**settings)
    metrics = Metrics()
    with served(create_app(chosen, Reads(chosen, store, metrics), metrics, Boards(BOARDS))) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.fixture(scope="module")
def client(store: Store) -> Iterator[httpx.Client]:
    """A client of a page without credentials."""
    with web(store) as opened:
        yield opened


def query(dashboard: str = "legato-streams", kind: str = "panel", name: str = "1/A", **more: Any) -> dict[str, Any]:
    """The body of a request for a result: the last hour."""
    return {"dashboard": dashboard, "kind": kind, "name": name, "from_ms": NOW_MS - 3_600_000, "to_ms": NOW_MS, **more}


@pytest.mark.parametrize("path", PAGES)
def test_every_response_forbids_other_origins(client: httpx.Client, path: str) -> None:
    """No inline script, no eval, no frame, nothing from elsewhere."""
    reply = client.get(path)
    policy = reply.headers["content-security-policy"]
    assert reply.status_code == 200 and reply.content
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and reply.headers["x-content-type-options"] == "nosniff"


def test_a_page_reads_a_bounded_number_of_bytes(store: Store, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's page over 32 MiB of rows is refused with both numbers: as Python's objects they take eight times as much."""
    ((trace,),) = store.select("SELECT lower(hex(trace_id)) FROM stream_revs LIMIT 1")
    assert client.get(f"/api/streams/{trace}").status_code == 200
    monkeypatch.setattr("legato_ingest.query.reads._PAGE_ROWS_BYTES_MAX", 100)
    reply = client.get(f"/api/streams/{trace}")
    assert reply.status_code == 400 and "bytes of rows, at most 100 are read" in reply.json()["error"]


def test_the_html_has_no_inline_script_or_style() -> None:
    """All scripts and styles are files of this package, and nothing names another host."""
    for path in (ROOT / "ingest" / "legato_ingest" / "web" / "static").rglob("*"):
        if path.suffix in (".html", ".js", ".css", ".svg"):
            text = path.read_text(encoding="utf-8")
            assert "://" not in text.replace("http://www.w3.org/", ""), path
            assert " style=" not in text and "innerHTML" not in text and "eval(" not in text and "new Function" not in text, path
    html = (ROOT / "ingest" / "legato_ingest" / "web" / "static" / "index.html").read_text(encoding="utf-8")
    assert "<style" not in html and html.count("<script") == html.count('<script type="module" src=')


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/panels", "/nothing", "/api/x"]
)
def test_nothing_outside_the_static_folder_is_served(client: httpx.Client, path: str) -> None:
    """A path cannot leave the folder."""
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)
def test_pages_of_others_are_refused(client: httpx.Client, headers: dict[str, str]) -> None:
    """A foreign name for this host, a page of another site, and a page on another port of this host."""
    reply = client.get("/api/dashboards", headers=headers)
    assert reply.status_code == 403 and reply.json()["error"]


def test_a_page_under_another_name_works_with_credentials(store: Store) -> None:
    """With a login the page may have any name; its own requests pass, and those of another host or port do not."""
    name = "legato.example:8080"
    with web(store, read_user="ana", read_password=PASSWORD) as client:
        login = {"user": "ana", "password": PASSWORD}
        own = {"Host": name, "Origin": f"https://{name}"}
        # A proxy may send its own name for this host. Only browsers set Sec-Fetch-Site.
        behind_proxy = {"Host": "127.0.0.1", "Origin": f"https://{name}", "Sec-Fetch-Site": "same-origin"}
        for headers in (own, {**own, "Sec-Fetch-Site": "same-origin"}, behind_proxy):
            assert client.post("/api/session", json=login, headers=headers).status_code == 200, headers
        for site in ("same-site", "cross-site"):
            assert client.post("/api/session", json=login, headers={**own, "Sec-Fetch-Site": site}).status_code == 403
        for origin in ("https://legato.example:9090", "https://evil.example", "null", "https://evil.example:8080"):
            reply = client.post("/api/session", json=login, headers={**own, "Origin": origin})
            assert reply.status_code == 403 and "set-cookie" not in reply.headers, origin


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_each_dashboard_has_its_own_queries(client: httpx.Client, board: dict[str, Any]) -> None:
    """The JSON is that of the file, and the SQL of each panel, variable and annotation is that of the JSON with its macros expanded."""
    uid, span = board["uid"], Range(NOW_MS - 3_600_000, NOW_MS)
    assert client.get(f"/api/dashboards/{uid}").json() == board
    named = [("panel", f"{panel['id']}/{target['refId']}", target) for panel in panels(board) for target in panel.get("targets") or ()]
    named += [("variable", each["name"], each["query"]) for each in listed(board, "templating") if each["type"] == "query"]
    named += [("annotation", each["name"], each["target"]) for each in listed(board, "annotations")]
    for kind, name, target in named:
        assert client.post("/api/query/sql", json=query(uid, kind, name)).json() == {"sql": expand(target["rawSql"], span, {})}
    for kind, name, _ in named[:1]:
        reply = client.post("/api/query", json=query(uid, kind, name))
        assert reply.status_code == 200 and reply.json().keys() >= {"meta", "data", "rows"}, reply.text[:300]


def listed(board: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The variables or annotations of a dashboard."""
    found: list[dict[str, Any]] = (board.get(name) or {}).get("list") or []
    return found


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, also those of closed rows."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def test_a_result_is_that_of_the_read_endpoint(client: httpx.Client, store: Store) -> None:
    """The same SQL gives the same rows through both ports."""
    with served(read_app(load(), store, Metrics())) as url:
        asked = query("legato-streams", "variable", "service", from_ms=0, to_ms=4 * 10**12)
        sql = client.post("/api/query/sql", json=asked).json()["sql"]
        expected = httpx.post(url, content=sql, params={"default_format": "JSONColumnsWithMetadata"}).json()
    found = client.post("/api/query", json=asked).json()
    assert (found["meta"], found["data"]) == (expected["meta"], expected["data"])


@pytest.mark.parametrize("value", ["' OR 1 = 1 --", "\\", "x'); SELECT 1; --", "${service:raw}", "$__all", "漢字<script>", "%27", "\0"])
def test_values_of_variables_stay_values(client: httpx.Client, value: str) -> None:
    """No value of a variable changes the statement: the query runs, and no stream has such a service."""
    reply = client.post("/api/query", json=query(variables={"service": [value], "vantage": [value]}))
    assert reply.status_code == 200 and (value == "$__all" or reply.json()["rows"] == 0), reply.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (query("nothing"), 404),
        (query(name="99/A"), 404),
        (query(kind="sql"), 400),
        (query(from_ms=-1), 400),
        (query(from_ms="x"), 400),
        (query(interval_ms=0), 400),
        (query(sql="SELECT 1"), 400),
        (query(variables={"service": ["x"] * 1_001}), 400),
        ([], 400),
        ({}, 400),
    ],
)
def test_a_wrong_request_is_an_error_with_a_reason(client: httpx.Client, body: Any, status: int) -> None:
    """A name that the dashboards do not have, a value out of range, SQL of a client."""
    reply = client.post("/api/query", json=body)
    assert reply.status_code == status and reply.json()["error"]


def test_bodies_are_json_and_bounded(client: httpx.Client) -> None:
    """A form, which another page could send, and a body without end are refused."""
    assert client.post("/api/query", data={"a": "b"}).status_code == 415
    assert client.post("/api/query", content=b" " * (2**20 + 1), headers={"Content-Type": "application/json"}).status_code == 413
    assert client.post("/api/query", content=b"{", headers={"Content-Type": "application/json"}).status_code == 400


def test_a_session_carries_the_credentials(store: Store) -> None:
    """Data needs a login; the cookie cannot be read by scripts and is not sent by other sites; after the end it is worth nothing."""
    with web(store, read_user="ana", read_password=PASSWORD) as client:
        assert client.get("/").status_code == client.get("/static/main.js").status_code == 200
        assert client.get("/api/dashboards").status_code == client.post("/api/query", json=query()).status_code == 401
        for wrong in ({"user": "ana", "password": "x"}, {"user": "eve", "password": PASSWORD}, {"password": PASSWORD}):
            refused = client.post("/api/session", json=wrong)
            assert refused.status_code == 401 and "set-cookie" not in refused.headers and PASSWORD not in refused.text
        begun = client.post("/api/session", json={"user": "ana", "password": PASSWORD})
        cookie = begun.headers["set-cookie"]
        assert begun.status_code == 200 and "HttpOnly" in cookie and "SameSite=strict" in cookie and PASSWORD not in cookie
        assert client.get("/api/dashboards").json()["has_login"] is True
        kept = dict(client.cookies)
        assert client.delete("/api/session").status_code == 200
        client.cookies.update(kept)
        assert client.get("/api/dashboards").status_code == 401


def test_a_token_reads_its_tenant_until_it_is_removed(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows a tenant its own rows; a removed token ends the session at once."""
    path = tmp_path / "tokens"
    token = add(path, "page", tenant="other", may="read")
    with web(store, tokens_file=path) as client:
        assert client.post("/api/session", json={"password": token}).status_code == 200
        asked = query("legato-streams", "variable", "service", from_ms=0, to_ms=4 * 10**12)
        assert client.post("/api/query", json=asked).json()["rows"] == 0
        remove(path, "page")
        monkeypatch.setattr("legato_ingest.auth.tokens._CHECK_EVERY_S", 0.0)
        assert client.post("/api/query", json=asked).status_code == 401


def test_a_user_runs_sql_with_the_limits_of_a_reader(client: httpx.Client) -> None:
    """A statement gives columns; one that writes, reads files or has its own format is refused with the reason."""
    assert client.post("/api/sql", json={"sql": "SELECT 1 AS one"}).json()["data"] == {"one": [1]}
    for sql in ("DROP TABLE streams", "SELECT * FROM file('/etc/passwd')", "SELECT 1 FORMAT CSV", "SELEC 1", ""):
        reply = client.post("/api/sql", json={"sql": sql})
        assert reply.status_code >= 400 and reply.json()["error"], sql


def test_a_stream_is_found_by_its_trace_id(client: httpx.Client) -> None:
    """The reply has the stream's chunks; an id that no stream has is 404."""
    sql = "SELECT lower(hex(trace_id)) AS trace, chunks FROM streams LIMIT 1"
    found = client.post("/api/sql", json={"sql": sql}).json()["data"]
    reply = client.get(f"/api/streams/{found['trace'][0]}")
    assert reply.headers["content-encoding"] == "gzip"
    assert len(reply.json()["vantages"][0]["dt_us"]) == int(found["chunks"][0])
    for unknown in ("f" * 32, "nothing", "' OR 1 = 1 --"):
        missing = client.get(f"/api/streams/{unknown}")
        assert missing.status_code == 404 and missing.json()["error"], unknown


def test_an_incident_is_the_report_of_the_command(client: httpx.Client) -> None:
    """Markdown about a range; a range that cannot be is refused."""
    reply = client.get("/api/incident", params={"from_ms": NOW_MS - 3_600_000, "to_ms": NOW_MS})
    assert reply.status_code == 200 and reply.json()["markdown"].startswith("# ")
    for asked in ("", "?from_ms=x&to_ms=1", "?from_ms=-1&to_ms=1", "?from_ms=1&to_ms=1000000000000000000", "?from_ms=5&to_ms=5"):
        assert client.get(f"/api/incident{asked}").status_code == 400, asked


def test_events_of_now_need_credentials(store: Store) -> None:
    """With a login the first event has the three lists; without one there is none."""
    with web(store, read_user="ana", read_password=PASSWORD) as client:
        assert client.get("/api/now").status_code == 401
        client.post("/api/session", json={"user": "ana", "password": PASSWORD})
        with client.stream("GET", "/api/now") as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            lines = reply.iter_lines()
            assert next(lines) == "event: now"
            assert json.loads(next(lines).removeprefix("data: ")).keys() == {"in_flight", "stalled", "engines", "stalled_streams"}
