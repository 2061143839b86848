"""Grafana's provisioning files: they have the mandatory fields, refer to existing objects, and their SQL runs.

The mandatory fields and the interpolation of environment variables are from the types of Grafana's provisioning (`rules_types.go`,
`contact_point_types.go`, `values.go`) in versions 11.6 to 13.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from helpers.servers.reading import open_store, reading, stream, streams_in
from legato_ingest.cli.client import Reader
from legato_ingest.cli.grafana.client import PLUGIN, UID, Source
from legato_ingest.dashboards import files as dashboard_files
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "dashboards"
FILES = sorted(path for path in (FOLDER / "provisioning").rglob("*") if path.is_file())
BOARDS = {board["uid"]: board for board in dashboard_files.load(FOLDER)}
DURATION = re.compile(r"\d+(ms|[smhdwy])")
VARIABLE = re.compile(r"\$(\w+)")
# The environment variables of the files. Grafana replaces an unset variable by an empty text.
ENVIRONMENT = {"LEGATO_READ_PASSWORD", "LEGATO_ALERT_WEBHOOK"}


def _read(name: str) -> Any:
    """Parse a provisioning file. Grafana parses JSON as YAML, too."""
    return yaml.safe_load((FOLDER / "provisioning" / name).read_text(encoding="utf-8"))


GROUPS = _read("alerting/rules.json")["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
QUERIES = [(rule, query) for rule in RULES for query in rule["data"] if query["datasourceUid"] != "__expr__"]
(POLICY,) = _read("alerting/policies.yaml")["policies"]
(POINT,) = _read("alerting/contactpoints.yaml")["contactPoints"]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_is_valid_for_grafana(path: pathlib.Path) -> None:
    """Each file has version 1, is in the folder of its kind, and has one list of objects."""
    kinds = {"datasources": {"datasources"}, "dashboards": {"providers"}, "alerting": {"groups", "contactPoints", "policies"}}
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    (kind,) = content.keys() - {"apiVersion"}
    assert content["apiVersion"] == 1 and kind in kinds[path.parent.name] and content[kind]
    assert all(each["orgId"] == 1 for each in content[kind])


def test_there_is_a_file_of_each_kind() -> None:
    """All files that the README lists exist."""
    assert {f"{path.parent.name}/{path.name}" for path in FILES} == {
        "alerting/contactpoints.yaml",
        "alerting/policies.yaml",
        "alerting/rules.json",
        "dashboards/legato.yaml",
        "datasources/legato.yaml",
    }


def test_the_data_source_is_the_one_that_push_makes() -> None:
    """The provisioned data source equals the one of `legato dashboards push`, and every panel and rule uses it.

    Host and port are literals in the file, because an unset variable would leave an empty port.
    """
    (source,) = _read("datasources/legato.yaml")["datasources"]
    made = Source("http://127.0.0.1:8123", "legato").as_json()
    assert source == {
        **made,
        "orgId": 1,
        "editable": False,
        "secureJsonData": {"password": "$LEGATO_READ_PASSWORD"},
    }
    asked = {(query["model"]["datasource"]["type"], query["model"]["datasource"]["uid"], query["datasourceUid"]) for _, query in QUERIES}
    assert asked == {(PLUGIN, UID, UID)} and source["uid"] == UID and source["type"] == PLUGIN
    targets = (query.target for board in BOARDS.values() for query in dashboard_files.queries(board))
    assert {(target["datasource"]["type"], target["datasource"]["uid"]) for target in targets} == {(PLUGIN, UID)}


def test_the_dashboards_come_from_a_folder() -> None:
    """The provider has a name, a type and an absolute path. Rules and dashboards share one folder, which Grafana finds by its title."""
    (provider,) = _read("dashboards/legato.yaml")["providers"]
    assert provider["type"] == "file" and provider["name"] and pathlib.PurePosixPath(provider["options"]["path"]).is_absolute()
    assert {provider["folder"]} == {group["folder"] for group in GROUPS} and "folderUid" not in provider


def test_a_rule_has_the_mandatory_fields() -> None:
    """Rules have the mandatory fields, valid states, and a condition that refers to their queries."""
    for group in GROUPS:
        assert group["name"] and group["folder"] and DURATION.fullmatch(group["interval"]) and group["rules"]
    for rule in RULES:
        refs = [query["refId"] for query in rule["data"]]
        assert rule["uid"] and rule["title"] and rule["condition"] in refs and len(refs) == len(set(refs)), rule["uid"]
        assert rule["noDataState"] in ("NoData", "Alerting", "OK", "KeepLast"), rule["uid"]
        assert rule["execErrState"] in ("Error", "Alerting", "OK", "KeepLast"), rule["uid"]
        assert DURATION.fullmatch(rule["for"]) and set(rule["labels"]) >= {"product"} and rule["labels"]["product"] == "legato"
        assert all(isinstance(value, str) for part in ("labels", "annotations") for value in rule[part].values())
        # Grafana rejects a rule with only one of the two fields of a panel link.
        assert ("dashboardUid" in rule) is ("panelId" in rule)
        for query in rule["data"]:
            assert query["model"]["refId"] == query["refId"] and query["datasourceUid"] in (UID, "__expr__")
            assert query["relativeTimeRange"]["from"] >= query["relativeTimeRange"]["to"] >= 0
            if query["datasourceUid"] == "__expr__":
                assert query["model"]["expression"] in refs and query["model"]["datasource"]["uid"] == "__expr__"


def test_the_table_of_the_rules_says_how_long_each_must_hold() -> None:
    """`for 1 min` among the guards; a rule without such a guard fires at once."""
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    for rule in RULES:
        name = rule["uid"].removeprefix("legato-").replace("-", "_")
        (row,) = re.findall(rf"^\| `{name}` .*$", table, re.MULTILINE)
        held = re.search(r"\bfor (\d+) min\b", row.split("|")[4])
        assert rule["for"] == (f"{held.group(1)}m" if held else "0s"), rule["uid"]


def test_uids_are_unique_and_short() -> None:
    """Uids of dashboards, rules and receivers have at most 40 characters, Grafana's limit. Titles of rules are unique."""
    for uids in (list(BOARDS), [rule["uid"] for rule in RULES], [receiver["uid"] for receiver in POINT["receivers"]]):
        assert len(uids) == len(set(uids)) and all(re.fullmatch(r"[A-Za-z0-9_-]{1,40}", uid) for uid in uids)
    titles = [rule["title"] for rule in RULES]
    assert len(titles) == len(set(titles)) and all(len(title) <= 190 for title in titles)


def test_a_rule_leads_to_a_dashboard() -> None:
    """Each rule has absolute links to existing dashboards, which set only variables that these dashboards have.

    The links of burn-rate rules lead to the time of the incident, and to one of its streams.
    """
    for rule in RULES:
        links = {name: rule["annotations"][name] for name in ("dashboard", "stream") if name in rule["annotations"]}
        for name, text in links.items():
            link = re.fullmatch(r'\{\{ reReplaceAll "/\$" "" externalURL \}\}/d/([\w-]+)/[\w-]+(?:\?(.*))?', text)
            assert link and link.group(1) in BOARDS, (rule["uid"], name)
            names = {variable["name"] for variable in BOARDS[link.group(1)]["templating"].get("list", ())}
            assert set(re.findall(r"var-(\w+)=", link.group(2) or "")) <= names, rule["uid"]
        if rule["uid"].endswith("-burn"):
            assert "from={{ with $values.detail }}{{ .Labels.from_ms }}" in links["dashboard"] and "to={{" in links["dashboard"]
            assert "var-stream={{ with $values.detail }}{{ .Labels.trace }}" in links["stream"]


def test_texts_that_change_are_no_labels_of_an_alert() -> None:
    """A changed label is another alert. The query with the texts has a row for each row of the condition, and its labels contain theirs."""
    for rule in RULES:
        labels = {query["refId"]: _labels(query) for query in rule["data"] if query["datasourceUid"] != "__expr__"}
        assert all(names == labels["firing"] for ref, names in labels.items() if ref != "detail"), rule["uid"]
        used = set(re.findall(r"\.Labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert used <= labels.get("detail", labels["firing"]) - labels["firing"], rule["uid"]
        if "detail" in labels:
            statements = {query["model"]["rawSql"].split("FROM\n(\n", 1)[1] for query in rule["data"] if query["refId"] in labels}
            assert labels["firing"] < labels["detail"] and len(statements) == 1, rule["uid"]


def _labels(query: dict[str, Any]) -> set[str]:
    return set(re.findall(r"::String AS (\w+)", query["model"]["rawSql"].split("FROM", 1)[0]))


def test_grafana_interpolates_only_the_intended_variables() -> None:
    """Grafana interpolates environment variables in titles, labels and settings, and in annotations only with braces."""
    for group in GROUPS:
        interpolated = [group["name"], group["folder"], group["interval"]]
        for rule in group["rules"]:
            interpolated += [text for name, part in rule.items() if name not in ("data", "annotations") for text in _strings(part)]
            interpolated += [text for query in rule["data"] for name, part in query.items() if name != "model" for text in _strings(part)]
            assert not [text for text in rule["annotations"].values() if "${" in text or "$$" in text], rule["uid"]
        assert not [text for text in interpolated if "$" in text]
    others = [_read(f"{path.parent.name}/{path.name}") for path in FILES if path.suffix == ".yaml"]
    dollars = [text for content in others for text in _strings(content) if "$" in text]
    assert {name for text in dollars for name in VARIABLE.findall(text)} == ENVIRONMENT
    # A variable is the complete value, so an unset variable does not leave a partial address.
    assert all(VARIABLE.fullmatch(text) for text in dollars)


def test_annotations_use_existing_queries_and_labels() -> None:
    """Every `$values.x` is a query of the rule and every `$labels.x` a text column of its SQL. Grafana prints others as empty text."""
    for rule in RULES:
        text = " ".join(rule["annotations"].values())
        refs = {query["refId"] for query in rule["data"]}
        sql = rule["data"][0]["model"]["rawSql"].split("FROM", 1)[0]
        assert set(re.findall(r"\$values\.(\w+)", text)) <= refs, rule["uid"]
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= set(re.findall(r"::String AS (\w+)", sql)), rule["uid"]


def test_the_contact_point_has_the_mandatory_fields() -> None:
    """The contact point has a name, and receivers with uid, type and settings."""
    assert POINT["name"] == "legato"
    for receiver in POINT["receivers"]:
        assert receiver["uid"] and receiver["type"] == "webhook" and receiver["settings"]["url"] == "$LEGATO_ALERT_WEBHOOK"
        assert receiver["disableResolveMessage"] is False


def test_pages_are_sent_sooner_and_more_often_than_tickets() -> None:
    """Every severity has a separate route to the contact point. Alerts are grouped, so one incident sends one message."""
    routes = {
        value: route for route in POLICY["routes"] for label, sign, value in route["object_matchers"] if (label, sign) == ("severity", "=")
    }
    severities = {rule["labels"].get("severity") for rule in RULES} - {None}
    severities |= {word for _, query in QUERIES for word in re.findall(r"'(page|ticket)'", query["model"]["rawSql"])}
    assert set(routes) == severities == {"page", "ticket"}
    for route in (POLICY, *POLICY["routes"]):
        assert route["receiver"] == POINT["name"] and route["group_by"] == ["alertname", "service"]
        assert all(DURATION.fullmatch(route[name]) for name in ("group_wait", "group_interval", "repeat_interval"))
    for name in ("group_wait", "repeat_interval"):
        assert _seconds(routes["page"][name]) < _seconds(routes["ticket"][name])
    assert all(_seconds(route["group_interval"]) <= _seconds(route["repeat_interval"]) for route in (POLICY, *POLICY["routes"]))


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[duration[-1]]


# The rules' SQL.


def test_the_rules_sql_has_no_variables_or_macros() -> None:
    """No variable, macro or FORMAT: rules are evaluated without a dashboard, and older plugins also expand macros in comments."""
    for rule, query in QUERIES:
        sql = query["model"]["rawSql"]
        assert not [word for word in ("${", "$__", "[[") if word in sql] and not re.search(r"\bFORMAT\b", sql), rule["uid"]
        assert query["model"]["format"] == 1 and query["model"]["editorType"] == "sql"


@pytest.fixture(scope="module", params=["empty", "filled"])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A client of the read endpoint over an empty store, and over one with streams that freeze."""
    with open_store(tmp_path_factory.mktemp("rules") / "store") as store, reading(store) as url:
        if request.param == "filled":
            frozen = [stream((20,) * 30 + (900,) + (20,) * 30, age_s=120 + 30 * n) for n in range(60)]
            streams_in(store, frozen, "shop")
            streams_in(store, [stream(age_s=300)], "chat", seed=8)
            RollupWorker(store, load(), Metrics()).step()
        yield Reader(url)


def test_every_query_of_every_rule_runs(reader: Reader) -> None:
    """Each query returns text columns and one number, which Grafana reads as one value per combination of labels."""
    filled = bool(reader.rows("SELECT 1 FROM stream_minutes LIMIT 1"))
    fires: dict[str, int] = {}
    for rule, query in QUERIES:
        rows = reader.rows(query["model"]["rawSql"])
        labels = [tuple(value for name, value in row.items() if name != query["refId"]) for row in rows]
        assert len(labels) == len(set(labels)), f"{rule['uid']} {query['refId']} returns one combination of labels twice"
        for row in rows:
            numbers = [name for name, value in row.items() if not isinstance(value, str)]
            assert numbers == [query["refId"]], f"{rule['uid']} {query['refId']}: {row}"
        if query["refId"] == "firing":
            fires[rule["uid"]] = sum(row["firing"] > 0 for row in rows)
    assert (fires["legato-itl-burn"] > 0) is filled and (fires["legato-ttft-burn"] > 0) is False


def test_the_sql_files_equal_the_rules() -> None:
    """The SQL that `legato slo` reads is the SQL that Grafana evaluates."""
    for rule in RULES:
        name = rule["uid"].removeprefix("legato-").replace("-", "_")
        text = (FOLDER / "alerts" / f"{name}.sql").read_text(encoding="utf-8")
        statement = text.split("\n", 1)[1]
        assert all(statement in query["model"]["rawSql"] for owner, query in QUERIES if owner is rule), rule["uid"]


def test_the_rules_file_has_the_canonical_format() -> None:
    """The file is formatted by `json.dumps`, so that a diff shows only the changed lines."""
    text = (FOLDER / "provisioning" / "alerting" / "rules.json").read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
