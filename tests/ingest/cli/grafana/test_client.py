"""Tests of `legato dashboards` with the real client and a double of Grafana's HTTP API that queries a real store."""

from __future__ import annotations

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from helpers.servers.grafana import TOKEN, USER, GrafanaDouble, grafana_double
from helpers.servers.ports import free_port
from helpers.servers.reading import open_store, reading, stream, streams_in
from legato_ingest.cli.dashboards import register
from legato_ingest.cli.grafana.client import Grafana, GrafanaError, Source, Unreachable, credential_of
from legato_ingest.dashboards import files as dashboard_files
from legato_ingest.dashboards.macros import Range
from legato_ingest.errors import LegatoError
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load

FOLDER = pathlib.Path(__file__).resolve().parents[4] / "dashboards"
BOARDS = dashboard_files.load(FOLDER)
PLUGIN = "grafana-clickhouse-datasource"
SPAN = Range(0, 60_000)


# tests/dashboards/test_empty.py asks an empty store for every panel, without Grafana between.
@pytest.fixture(scope="module", params=[pytest.param("empty", marks=pytest.mark.long), "filled"])
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The read endpoint of an empty store, and of one with streams and rollups."""
    with open_store(tmp_path_factory.mktemp("grafana") / "store") as store, reading(store) as url:
        if request.param == "filled":
            server = {"legato.stream.vantage": "server"}
            streams_in(store, [stream((20,) * 30 + (900,) + (20,) * 30, age_s=600 + 60 * n) for n in range(9)], "shop")
            streams_in(store, [stream(attributes=server, age_s=600)], "api", seed=8)
            RollupWorker(store, load(), Metrics()).step()
        yield url


@pytest.fixture
def double() -> Iterator[GrafanaDouble]:
    """An empty Grafana."""
    with grafana_double() as made:
        yield made


def legato(*words: str, **environ: str) -> Result:
    """Run a command of `legato dashboards`."""
    app = typer.Typer()
    register(app)
    given = {"LEGATO_GRAFANA_TOKEN": TOKEN, "LEGATO_GRAFANA_USER": "", "LEGATO_GRAFANA_PASSWORD": "", "LEGATO_READ_PASSWORD": ""}
    return CliRunner().invoke(app, ["dashboards", *words], env={**given, **environ})


def refusal(*words: str, **environ: str) -> str:
    """The error that `main` prints in one line."""
    result = legato(*words, **environ)
    assert isinstance(result.exception, LegatoError), result.output
    assert "\n" not in str(result.exception) and TOKEN not in str(result.exception)
    return str(result.exception)


def pushed(double: GrafanaDouble, clickhouse: str = "http://127.0.0.1:1", *words: str, **environ: str) -> tuple[int, list[Any]]:
    """The exit status and the results."""
    result = legato("push", "--url", double.url, "--clickhouse", clickhouse, "--json", *words, **environ)
    assert result.stdout.count("\n") == 1, result.output
    report = json.loads(result.stdout)
    assert bool(report["failed"]) is bool(result.exit_code)
    return result.exit_code, report["did"]


def did(done: list[Any], what: str = "dashboard") -> list[str]:
    """The result of each object of a kind."""
    return [each["did"] for each in done if each["what"] == what]


# Pushing.


def test_a_push_puts_everything_there_and_a_second_one_changes_nothing(double: GrafanaDouble, store_url: str) -> None:
    """Folder, data source and every dashboard, with links; a second push writes nothing."""
    status, done = pushed(double, store_url)
    assert status == 0 and did(done, "folder") == ["created"] and did(done, "data source") == ["created", "works"]
    assert did(done) == ["created"] * len(BOARDS) and list(double.folders) == ["legato"]
    assert {uid: kept["dashboard"]["panels"] for uid, kept in double.boards.items()} == {one["uid"]: one["panels"] for one in BOARDS}
    assert {kept["meta"]["folderUid"] for kept in double.boards.values()} == {"legato"}
    assert done[-1]["url"].startswith(f"{double.url}/d/legato-")
    double.writes.clear()
    status, done = pushed(double, store_url)
    assert status == 0 and did(done, "folder") == ["kept"] and did(done, "data source") == ["kept", "works"]
    assert did(done) == ["unchanged"] * len(BOARDS) and double.writes == []


def test_an_edit_is_overwritten(double: GrafanaDouble) -> None:
    """Edited or moved dashboards are restored; the others are unchanged."""
    pushed(double)
    first, second = list(double.boards)[:2]
    double.boards[first]["dashboard"]["title"] = "mine"
    double.boards[second]["meta"]["folderUid"] = "elsewhere"
    _, done = pushed(double)
    assert did(done)[:3] == ["updated", "updated", "unchanged"]
    assert double.boards[first]["dashboard"]["title"] != "mine" and double.boards[second]["meta"]["folderUid"] == "legato"


def test_one_line_per_object(double: GrafanaDouble, store_url: str) -> None:
    """Result, object and link."""
    result = legato("push", "--url", double.url, "--clickhouse", store_url)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and len(lines) == 3 + len(BOARDS)
    assert lines[0] == f"created    folder Legato  {double.url}/dashboards/f/legato/legato"
    assert all(line.startswith("created    dashboard Legato · ") and f"{double.url}/d/legato-" in line for line in lines[3:])


def test_the_data_source_comes_from_the_option_and_the_environment(double: GrafanaDouble) -> None:
    """Host, port and TLS from --clickhouse; user and password from the environment, and only when there is a password."""
    described = Source("https://store.example/ch").as_json()
    expected = {"host": "store.example", "port": 8443, "protocol": "http", "secure": True, "path": "/ch", "username": ""}
    assert described["jsonData"] | expected == described["jsonData"] and described["secureJsonData"] == {}
    _, done = pushed(double, "http://10.0.0.7", LEGATO_READ_PASSWORD="a long password")
    made = double.sources["legato"]
    assert made["secureJsonData"] == {"password": "a long password"} and made["jsonData"]["username"] == "legato"
    assert made["jsonData"]["port"] == 8123 and "a long password" not in json.dumps(done)


def test_an_existing_data_source_is_not_changed(double: GrafanaDouble, store_url: str) -> None:
    """If it is a ClickHouse data source; another type is an error."""
    host, port = store_url.removeprefix("http://").split(":")
    options = {"host": host, "port": int(port), "protocol": "http", "secure": False}
    mine = {"uid": "legato", "name": "Ours", "type": PLUGIN, "jsonData": options}
    double.sources["legato"] = mine
    _, done = pushed(double, "http://10.9.9.9")
    assert double.sources["legato"] is mine and [(each["name"], each["did"]) for each in done[1:3]] == [("Ours", "kept"), ("Ours", "works")]
    double.sources["legato"] = {**mine, "type": "prometheus"}
    status, done = pushed(double)
    assert status == 1 and did(done, "data source") == ["failed"] and "is a prometheus" in done[1]["error"]


def test_the_folder_of_provisioned_alert_rules_is_used(double: GrafanaDouble) -> None:
    """Grafana creates a folder Legato for the rules, with another uid: no second folder is created."""
    double.folders["af2x"] = {"uid": "af2x", "title": "Legato", "url": "/dashboards/f/af2x/legato"}
    _, done = pushed(double)
    assert did(done, "folder") == ["kept"] and list(double.folders) == ["af2x"]
    assert {kept["meta"]["folderUid"] for kept in double.boards.values()} == {"af2x"}


def test_grafana_under_a_sub_path_and_a_user_with_a_password() -> None:
    """A URL with a path works with and without a slash at the end, and a user instead of a token."""
    with grafana_double(prefix="/graphs") as double:
        user = {"LEGATO_GRAFANA_TOKEN": "", "LEGATO_GRAFANA_USER": USER[0], "LEGATO_GRAFANA_PASSWORD": USER[1]}
        _, done = pushed(double, **user)
        assert did(done) == ["created"] * len(BOARDS) and done[-1]["url"].startswith(f"{double.url}/d/legato-")
        double.url += "/"
        assert did(pushed(double, **user)[1]) == ["unchanged"] * len(BOARDS)


def test_one_failure_does_not_stop_the_others(double: GrafanaDouble) -> None:
    """A dashboard of others, a provisioned one and one in a newer format are not changed; each is listed, and the status is 1."""
    first, second, third = (board["uid"] for board in BOARDS[:3])
    double.boards[first] = {"dashboard": {"uid": first, "title": "Sales", "tags": ["money"], "version": 3}, "meta": {}}
    double.boards[second] = {"dashboard": {"uid": second, "title": "x", "tags": ["legato"], "version": 1}, "meta": {"provisioned": True}}
    double.refused[f"GET /api/dashboards/uid/{third}"] = (406, "dashboard api version not supported, use v2")
    status, done = pushed(double)
    errors = [each["error"] for each in done if each["what"] == "dashboard"]
    assert status == 1 and did(done) == ["failed"] * 3 + ["created"] * (len(BOARDS) - 3)
    assert (
        "another dashboard has this uid ('Sales'" in errors[0]
        and "provisions this dashboard from a file" in errors[1]
        and "newer format" in errors[2]
    )
    assert double.boards[first]["dashboard"]["title"] == "Sales"
    page = legato("push", "--url", double.url)
    assert page.exit_code == 1 and sum(line.startswith("failed ") for line in page.stdout.splitlines()) == 4


def test_a_refused_write_is_reported(double: GrafanaDouble) -> None:
    """An Editor may not create data sources: the error names the role, and the dashboards are pushed."""
    double.refused["POST /api/datasources"] = (403, "You'll need additional permissions: datasources:create")
    status, done = pushed(double)
    assert status == 1 and did(done, "data source") == ["failed"] and "Admin to create" in done[1]["error"] and "created" in did(done)
    double.sources["other"] = {"uid": "other", "name": "Legato"}
    double.refused.clear()
    assert "409" in pushed(double)[1][1]["error"]


def test_a_missing_plugin_is_named(double: GrafanaDouble) -> None:
    """From the data source's health check: push names the command to install it, and check sends no query."""
    double.has_plugin = False
    status, done = pushed(double)
    assert status == 1 and did(done, "data source") == ["created", "failed"] and f"plugins install {PLUGIN}" in done[2]["error"]
    assert f"plugins install {PLUGIN}" in refusal("check", "--url", double.url) and double.queries == []


def test_a_store_that_is_down_is_reported(double: GrafanaDouble) -> None:
    """Grafana answers and `legato serve` does not."""
    status, done = pushed(double, f"http://127.0.0.1:{free_port()}")
    assert status == 1 and "connection refused" in done[2]["error"] and "`legato serve`" in done[2]["error"]


# Checking.


def test_every_panel_works_through_grafana(double: GrafanaDouble, store_url: str) -> None:
    """Every query of every dashboard runs with default variables, and none fails."""
    pushed(double, store_url)
    result = legato("check", "--url", double.url, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["failed"] == 0, [row for row in report["answers"] if row["error"]]
    asked = {(row["uid"], row["kind"], row["name"]) for row in report["answers"]}
    panels = {(one["uid"], "panel", panel["title"]) for one in BOARDS for panel in one["panels"] if panel.get("targets")}
    assert panels < asked and {kind for _, kind, _ in asked} == {"panel", "annotation", "variable"} and len(report["answers"]) == len(asked)
    assert report["to_ms"] - report["from_ms"] == 6 * 3_600_000
    sent = [query for body in double.queries for query in body["queries"]]
    assert not [query for query in sent if "${" in query["rawSql"]] and any("$__timeFilter(" in query["rawSql"] for query in sent)
    rows = {row["name"]: row["rows"] for row in report["answers"] if row["uid"] == "legato-streams"}
    is_filled = rows["service"] > 0
    assert rows["service"] == (2 if is_filled else 0)


def test_the_text_of_check(double: GrafanaDouble, store_url: str, tmp_path: pathlib.Path) -> None:
    """One row per query, and the number of failures."""
    pushed(double, store_url)
    shutil.copy(FOLDER / "legato-stream.json", tmp_path)
    result = legato("check", "--url", double.url, "--since", "15m", LEGATO_DASHBOARDS_DIR=str(tmp_path))
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and "query" in lines[0] and any("Stalls, verdicts and evidence" in line for line in lines)
    assert lines[-1].startswith(f"{len(double.queries)} queries, 0 failed, ")


@contextmanager
def edited(tmp_path: pathlib.Path, sql: str) -> Iterator[dict[str, str]]:
    """A folder with one small dashboard with this query, and the setting that names it."""
    source = {"type": PLUGIN, "uid": "legato"}
    target = {"refId": "A", "datasource": source, "rawSql": sql, "format": 1}
    panels = [{"id": 1, "type": "row", "title": "folded", "panels": [{"id": 2, "type": "table", "title": "Mine", "targets": [target]}]}]
    hidden = {"id": 3, "type": "table", "targets": [{**target, "hide": True}, {"refId": "B", "datasource": {"uid": "__expr__"}}]}
    chosen = {"name": "n", "type": "textbox", "query": "it's 100%"}
    board = {"uid": "legato-mine", "title": "Mine", "schemaVersion": 42, "panels": [*panels, hidden], "templating": {"list": [chosen]}}
    (tmp_path / "legato-mine.json").write_text(json.dumps(board), encoding="utf-8")
    yield {"LEGATO_DASHBOARDS_DIR": str(tmp_path)}


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT nonsense", "nonsense"),
        ("SELECT $__timeGroup(now(), 5m)", "$__timeGroup is not a macro"),
        ("SELECT '${n}'", "has the format None, expected queryparam"),
        ("SELECT '${n:queryparam}' AS x", ""),
    ],
)
def test_a_panel_that_fails_is_named(double: GrafanaDouble, store_url: str, tmp_path: pathlib.Path, sql: str, words: str) -> None:
    """With its dashboard, its name and the error; the status is 1. Hidden queries do not run."""
    pushed(double, store_url)
    with edited(tmp_path, sql) as environ:
        result = legato("check", "--url", double.url, **environ)
    if words:
        assert result.exit_code == 1 and "1 queries, 1 failed" in result.stdout
        (line,) = (line for line in result.stdout.splitlines() if line.startswith("failed "))
        assert line.startswith("failed  Mine · panel Mine: ") and words in line
    else:
        assert result.exit_code == 0 and double.queries[0]["queries"][0]["rawSql"] == "SELECT 'var-n=it%27s%20100%25' AS x"


def test_nothing_is_checked_without_a_data_source(double: GrafanaDouble) -> None:
    """One error, not one per panel."""
    assert "`legato dashboards push` creates it" in refusal("check", "--url", double.url)


def test_an_answer_without_a_result_is_an_error(double: GrafanaDouble) -> None:
    """A proxy may return any reply."""
    query = next(dashboard_files.queries(BOARDS[0]))
    double.refused["POST /api/ds/query"] = (200, "all is well")
    with Grafana(double.url, TOKEN) as grafana:
        assert "without a result" in grafana.run(query, SPAN).error
        double.refused["POST /api/ds/query"] = (503, "no healthy upstream")
        assert "503: no healthy upstream" in grafana.run(query, SPAN).error


# Missing and wrong servers.


def test_no_grafana() -> None:
    """No server on the port."""
    url = f"http://127.0.0.1:{free_port()}"
    for command in ("push", "check"):
        assert f"no Grafana at {url}" in refusal(command, "--url", url)


def test_a_grafana_that_does_not_answer() -> None:
    """It accepts the connection and sends no reply: a time-out with the next step."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with Grafana(f"http://127.0.0.1:{listener.getsockname()[1]}", TOKEN, timeout_s=0.2) as grafana:
            with pytest.raises(GrafanaError, match=r"did not answer within 0\.2 s"):
                grafana.expect_source()


def test_one_slow_panel_is_one_failure(double: GrafanaDouble) -> None:
    """The time-out is in the result of its query."""
    double.stuck = threading.Event()
    with Grafana(double.url, TOKEN, timeout_s=0.2) as grafana:
        answer = grafana.run(next(dashboard_files.queries(BOARDS[0])), SPAN)
    double.stuck.set()
    assert "did not answer within" in answer.error


def test_a_wrong_token_and_none(double: GrafanaDouble) -> None:
    """Both errors name the setting, and never its value."""
    wrong = refusal("push", "--url", double.url, LEGATO_GRAFANA_TOKEN="glsa_wrong")
    assert "rejects this token" in wrong and "LEGATO_GRAFANA_TOKEN" in wrong and "glsa_wrong" not in wrong
    assert "needs credentials" in refusal("check", "--url", double.url, LEGATO_GRAFANA_TOKEN="")
    assert double.writes == []


@pytest.mark.parametrize("status", ["200", "404", "502"])
def test_another_server(double: GrafanaDouble, status: str) -> None:
    """A login page, another server's "not found", a proxy's error: nothing is written there."""
    double.page = status
    for command in ("push", "check"):
        assert "answers with a web page" in refusal(command, "--url", double.url)
    assert double.writes == []


@pytest.mark.parametrize(
    ("option", "url", "words"),
    [
        ("--url", "http://admin:hunter2@127.0.0.1:3000", "contains a user or a password"),
        ("--url", "127.0.0.1:3000", "expected something like http://127.0.0.1:3000"),
        ("--url", "ftp://127.0.0.1", "expected something like"),
        ("--url", "http://", "expected something like"),
        ("--url", "http://h:notaport", "is not a URL"),
        ("--url", "http://h/?orgId=2", "expected something like"),
        ("--clickhouse", "http://legato:hunter2@h:8123", "LEGATO_READ_PASSWORD"),
        ("--clickhouse", "native://h:9000", "expected something like http://127.0.0.1:8123"),
    ],
)
def test_invalid_urls(double: GrafanaDouble, option: str, url: str, words: str) -> None:
    """Each is rejected before any request; a password in the URL is not printed."""
    refused = refusal("push", *(("--url", double.url) if option == "--clickhouse" else ()), option, url)
    assert words in refused and "hunter2" not in refused and double.writes == []


def test_incomplete_credentials() -> None:
    """A user without a password, a token with a character that no header takes."""
    for given in ({"grafana_user": "admin"}, {"grafana_password": "x"}, {"grafana_token": "glsa_ü"}, {"grafana_token": "a\nb"}):
        with pytest.raises(GrafanaError, match="LEGATO_GRAFANA_"):
            credential_of(load(**given))
    assert credential_of(load(grafana_token=" glsa_x\n")) == "glsa_x" and credential_of(load()) is None


def test_a_password_of_any_characters_is_sent(double: GrafanaDouble) -> None:
    """A password that is not ASCII is a wrong password, not a failure of the client."""
    with Grafana(double.url, ("admin", "größe €")) as grafana, pytest.raises(Unreachable, match="rejects this"):
        grafana.expect_source()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is not a classic dashboard"),
        ('{"apiVersion": "dashboard.grafana.app/v2", "kind": "Dashboard", "spec": {}}', "is not a classic dashboard"),
        ('{"uid": "x", "title": "X", "schemaVersion": 43, "panels": []}', "from a newer Legato"),
        ('{"title": "X", "schemaVersion": 42, "panels": []}', "needs a title and a uid"),
        (json.dumps({"uid": "x" * 41, "title": "X", "schemaVersion": 42, "panels": []}), "at most 40"),
    ],
)
def test_invalid_dashboard_files(tmp_path: pathlib.Path, text: str, words: str) -> None:
    """The error names the file."""
    (tmp_path / "legato-x.json").write_text(text, encoding="utf-8")
    refused = refusal("push", LEGATO_DASHBOARDS_DIR=str(tmp_path))
    assert words in refused and "legato-x.json" in refused


def test_a_folder_without_dashboards_or_with_one_twice(tmp_path: pathlib.Path) -> None:
    """The error names the setting of the folder, or the uid."""
    assert "LEGATO_DASHBOARDS_DIR" in refusal("check", LEGATO_DASHBOARDS_DIR=str(tmp_path / "nowhere"))
    for name in ("legato-a.json", "legato-b.json"):
        (tmp_path / name).write_text('{"uid": "x", "title": "X", "schemaVersion": 42, "panels": []}', encoding="utf-8")
    assert "have the uid x" in refusal("check", LEGATO_DASHBOARDS_DIR=str(tmp_path))


def test_without_the_client_the_extra_is_named() -> None:
    """Without `[grafana]` the real command names the package to install."""
    script = (
        "import sys; sys.modules['grafana_client'] = None; sys.argv = ['legato', 'dashboards', 'push'];"
        "from legato_ingest.cli.main import main; main()"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 1 and run.stderr.strip().endswith("pip install './ingest[grafana]'") and run.stdout == ""
