"""The alert rules in Grafana's provisioning format: the SQL, the condition and the message of each rule.

A rule is one statement with a column ``firing``. Grafana reads one number per query, so each figure in a message is a separate query over
the same statement. Source: Grafana's file provisioning of alerting (v13), `rules_types.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.alerts import burn, others
from dashboards.target import PLUGIN
from legato_ingest.causes import CAUSES

__all__ = ["RULES", "Rule", "provisioned"]

_BEHIND_S = 259_200


@dataclass(frozen=True, slots=True)
class Rule:
    """``name`` is part of the file name and of the uid; ``labels`` are the text columns, ``figures`` the numbers in the message."""

    name: str
    title: str
    sql: str
    labels: Sequence[str]
    figures: Sequence[str]
    summary: str
    description: str
    dashboard: str
    severity: str = ""
    hold: str = "0s"


def _figure(name: str, form: str = "") -> str:
    return f"{{{{ with $values.{name} }}}}{{{{ .Value{f' | {form}' if form else ''} }}}}{{{{ end }}}}"


def _cause() -> str:
    """Return the template that converts the number of the likely cause, its position in the table of causes, to words."""
    words = "".join(f"{{{{ if eq .Value {number}.0 }}}}{cause.label} ({cause.name}){{{{ end }}}}" for number, cause in enumerate(CAUSES, 1))
    return f"{{{{ with $values.cause_number }}}}{words}{{{{ if eq .Value 0.0 }}}}not known yet{{{{ end }}}}{{{{ end }}}}"


_BURN_LABELS = ("tenant", "service", "vantage", "severity")
_BURN_FIGURES = ("burn_rate", "bad", "streams", "clients", "window_s", "cause_number", "cause_share")
_BURN_MESSAGE = (
    f"{_figure('bad')} bad of {_figure('streams')} streams of {{{{ $labels.service }}}} at the {{{{ $labels.vantage }}}} in "
    f"{_figure('window_s', 'humanizeDuration')}, from {_figure('clients')} end users: the budget burns "
    f"{_figure('burn_rate')} times too fast."
)
_BURN_CAUSE = f" Likely cause: {_cause()}, with {_figure('cause_share', 'humanizePercentage')} of the last hour's stalled time."

RULES = (
    Rule(
        "itl_burn",
        "ITL goodput burns its budget",
        burn.ITL,
        _BURN_LABELS,
        _BURN_FIGURES,
        "{{ $labels.service }} ({{ $labels.vantage }}): streams freeze",
        _BURN_MESSAGE + _BURN_CAUSE,
        "/d/legato-attribution/jitter?var-service={{ $labels.service | urlquery }}",
    ),
    Rule(
        "ttft_burn",
        "First outputs are late",
        burn.TTFT,
        _BURN_LABELS,
        _BURN_FIGURES,
        "{{ $labels.service }} ({{ $labels.vantage }}): first outputs are late",
        _BURN_MESSAGE + " These streams had no other fault: check queue and prefill.",
        "/d/legato-nodes/nodes",
    ),
    Rule(
        "reader_burn",
        "End users' own stalls burn their budget",
        burn.END_USERS,
        _BURN_LABELS,
        _BURN_FIGURES,
        "{{ $labels.service }} ({{ $labels.vantage }}): stalls on the end users' side",
        _BURN_MESSAGE
        + _BURN_CAUSE
        + " The service is not at fault: the application held the stream, did not read its socket, or one end user's connection failed.",
        "/d/legato-attribution/jitter?var-service={{ $labels.service | urlquery }}",
    ),
    Rule(
        "preemption_storm",
        "An engine preempts continuously",
        others.PREEMPTION,
        ("tenant", "engine"),
        ("minutes_preempting", "requests_preempted", "kv_used_max"),
        "{{ $labels.engine }}: KV cache too small for the load",
        f"{{{{ $labels.engine }}}} preempted requests in {_figure('minutes_preempting')} of the last 60 minutes, "
        f"{_figure('requests_preempted')} in all; its KV cache was up to {_figure('kv_used_max', 'humanizePercentage')} full. "
        "Use fewer concurrent requests, shorter contexts, or more memory.",
        "/d/legato-nodes/nodes?var-engine={{ $labels.engine | urlquery }}",
        severity="ticket",
    ),
    Rule(
        "chunking_change",
        "A provider changed its chunking",
        others.CHUNKING,
        ("tenant", "service", "model", "provider", "route", "vantage"),
        ("share_before", "share_after", "rate_ratio", "changed_s"),
        "{{ $labels.provider }} {{ $labels.model }}: chunk size changed",
        f"Chunks with several tokens: {_figure('share_before', 'humanizePercentage')} before, "
        f"{_figure('share_after', 'humanizePercentage')} since {_figure('changed_s', 'humanizeTimestamp')}; token rate multiplied by "
        f"{_figure('rate_ratio')}.",
        "/d/legato-chunking/chunking?var-service={{ $labels.service | urlquery }}",
        severity="ticket",
    ),
    Rule(
        "ingest_backlog",
        "Legato is behind or failing",
        others.INGEST,
        ("host", "what"),
        ("value", "bound"),
        "legato on {{ $labels.host }}: {{ $labels.what }}",
        f"{{{{ $labels.what }}}} = {_figure('value')}, the limit is {_figure('bound')}. Until this is fixed, dashboards and alerts are "
        "incomplete.",
        "/d/legato-self/self-monitoring",
        severity="ticket",
        hold="5m",
    ),
    Rule(
        "collector_backlog",
        "A Collector cannot deliver",
        others.COLLECTOR,
        ("host", "exporter"),
        ("in_use",),
        "collector on {{ $labels.host }}: queue of {{ $labels.exporter }} fills",
        f"Its queue is {_figure('in_use', 'humanizePercentage')} full. When it is full, the Collector drops spans.",
        "/d/legato-self/self-monitoring",
        severity="ticket",
        hold="5m",
    ),
)


def provisioned() -> dict[str, Any]:
    """Return the rules as a file of Grafana's alerting provisioning."""
    group = {"orgId": 1, "name": "legato", "folder": "Legato", "interval": "1m", "rules": [_rule(rule) for rule in RULES]}
    return {"apiVersion": 1, "groups": [group]}


def _rule(rule: Rule) -> dict[str, Any]:
    """Return one rule. Its condition is ``firing`` above 0; the other figures are for the message."""
    columns = ["firing", *rule.figures]
    return {
        "uid": f"legato-{rule.name.replace('_', '-')}",
        "title": rule.title,
        "condition": "fires",
        "data": [*(_query(rule, column) for column in columns), _threshold()],
        # No row means no stream, no engine or no finding: nothing to report.
        "noDataState": "OK",
        # If the read endpoint is overloaded or down, only one rule reports it.
        "execErrState": "Error" if rule.name == "ingest_backlog" else "KeepLast",
        "for": rule.hold,
        "annotations": {"summary": rule.summary, "description": rule.description, "dashboard": rule.dashboard},
        "labels": {"product": "legato", **({"severity": rule.severity} if rule.severity else {})},
        "isPaused": False,
    }


def _query(rule: Rule, column: str) -> dict[str, Any]:
    names = ", ".join(f"{label}::String AS {label}" for label in rule.labels)
    sql = f"SELECT {names}, toFloat64({column}) AS {column}\nFROM\n(\n{rule.sql}\n)"
    model = {"refId": column, "editorType": "sql", "rawSql": sql, "format": 1, "queryType": "table", "pluginVersion": "4.20.0"}
    model["datasource"] = {"type": PLUGIN, "uid": "legato"}
    return {"refId": column, "relativeTimeRange": {"from": _BEHIND_S, "to": 0}, "datasourceUid": "legato", "model": model}


def _threshold() -> dict[str, Any]:
    evaluator = {"type": "gt", "params": [0]}
    model = {
        "refId": "fires",
        "type": "threshold",
        "expression": "firing",
        "datasource": {"type": "__expr__", "uid": "__expr__"},
        "conditions": [{"evaluator": evaluator}],
    }
    return {"refId": "fires", "relativeTimeRange": {"from": 0, "to": 0}, "datasourceUid": "__expr__", "model": model}
