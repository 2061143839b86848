"""dashboards/README.md lists what is in the folder: every dashboard, every alert of Prometheus with what it needs, and valid examples."""

from __future__ import annotations

import re

import yaml

from helpers.dashboards.panels import BOARDS, dashboard
from helpers.repo.repository import ROOT

FOLDER = ROOT / "dashboards"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
NUMBERS = {8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}
GROUPS = yaml.safe_load((FOLDER / "alerts" / "prometheus.yml").read_text(encoding="utf-8"))["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
RECORDED = {"legato:budget:burn_rate": "legato_streams_total"}


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return lines[2:]


def test_every_dashboard_is_listed() -> None:
    """Each with its title and uid, and both READMEs have their number."""
    titles = [(dashboard(name)["title"].removeprefix("Legato · "), dashboard(name)["uid"]) for name in BOARDS]
    listed = [re.match(r"(.+?) \(`([\w-]+)`\)", cells[0]) for cells in _rows("Dashboards")]
    assert sorted(each.groups() for each in listed if each) == sorted(titles)
    assert all(cells[1].endswith("?") for cells in _rows("Dashboards"))
    number = NUMBERS[len(BOARDS)]
    assert f"[{number} dashboards]" in TEXT and f"{number} Grafana dashboards" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_alert_of_prometheus_is_listed() -> None:
    """Each with its severities and exactly the metrics that its expression reads."""
    listed = {cells[0].strip("`"): cells for cells in _rows("Alert rules for Prometheus")}
    assert list(listed) == list(dict.fromkeys(rule["alert"] for rule in ALERTS))
    for name, cells in listed.items():
        rules = [rule for rule in ALERTS if rule["alert"] == name]
        assert cells[1].split("; ") == list(dict.fromkeys(rule["labels"]["severity"] for rule in rules)), name
        found = {each for rule in rules for each in re.findall(r"\b(?:legato:[\w:]+|legato_\w+|otelcol_\w+)", rule["expr"])}
        assert set(re.findall(r"`(\w+)`", cells[3])) == {RECORDED.get(each, each) for each in found}, name


def test_the_waits_are_those_of_the_rules() -> None:
    """Alerts on Legato itself wait for 5 minutes, those on budgets do not."""
    waits = {rule["alert"]: rule.get("for") for rule in ALERTS}
    budgets = {"LegatoStreamsFreeze", "LegatoFirstOutputsLate"}
    assert {name for name, wait in waits.items() if wait is None} == budgets
    assert {wait for name, wait in waits.items() if name not in budgets} == {"5m"}


def test_the_examples_are_valid() -> None:
    """Prometheus loads the rules and scrapes often enough; Alertmanager's receivers exist, and pages match the labels of the rules."""
    prometheus, alertmanager = (yaml.safe_load(each) for each in re.findall(r"```yaml\n(.+?)```", TEXT, re.DOTALL))
    assert prometheus["rule_files"] and {job["job_name"] for job in prometheus["scrape_configs"]} == {"legato", "legato-collector"}
    route, names = alertmanager["route"], {receiver["name"] for receiver in alertmanager["receivers"]}
    assert {route["receiver"], *(each["receiver"] for each in route["routes"])} == names
    matched = dict(re.findall(r'(\w+)="(\w+)"', " ".join(route["routes"][0]["matchers"])))
    pages = [rule for rule in ALERTS if matched.items() <= rule["labels"].items()]
    assert pages and all(rule["labels"]["severity"] == "page" for rule in pages)
    for path in re.findall(r"promtool \w+ rules (\S+)", TEXT):
        assert (ROOT / path).is_file()
