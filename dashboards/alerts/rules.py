"""The alert rules in Grafana's provisioning format: the SQL, the condition and the message of each rule.

A rule is one statement with a column ``firing``. Grafana reads one number per query, so each figure in a message is a separate query over
the same statement. Texts that change during an incident must not be labels of the alert, because another label value is another alert: they
are labels of the query ``detail`` alone, which a message reads as ``$values.detail.Labels``. That query returns a row for every row of the
statement, because a query without rows would make the whole rule "no data". Sources: Grafana's file provisioning of alerting (v13),
`rules_types.go`; matching of the queries' labels, `ngalert/eval/eval.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.alerts import burn, others, running
from dashboards.boards.runbook import panel_of
from dashboards.target import PLUGIN

__all__ = ["RULES", "Rule", "provisioned"]

_BEHIND_S = 259_200
# Rules that report that they cannot be evaluated: the cheapest statement, and the most important one, which is among the longest.
_REPORTS_ERRORS = ("ingest_backlog", "itl_burn")
# Characters that are not seen (`legato_ingest.visible`), as Go's regular expressions name them. A message goes to chats and mails, where a
# name could run backwards, break its line, or look like another. The labels of the alert and the links keep the name itself.
_UNSEEN = (
    r"[\p{C}\p{Zl}\p{Zp}\x{34F}\x{115F}\x{1160}\x{17B4}\x{17B5}\x{180B}-\x{180F}\x{2800}\x{3164}\x{FE00}-\x{FE0F}\x{FFA0}"
    r"\x{E0100}-\x{E01EF}]"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """``name`` is part of the file name and of the uid; ``labels`` are the text columns that identify an alert.

    ``figures`` are the numbers, and ``texts`` the other text columns, of the message.
    """

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
    texts: Sequence[str] = ()
    stream: str = ""


def _figure(name: str, form: str = "") -> str:
    return f"{{{{ with $values.{name} }}}}{{{{ .Value{f' | {form}' if form else ''} }}}}{{{{ end }}}}"


def _label(name: str) -> str:
    return _visible(f"$labels.{name}")


def _visible(value: str) -> str:
    return f'{{{{ {value} | reReplaceAll `{_UNSEEN}` "\ufffd" }}}}'


def _text(name: str) -> str:
    return f"{{{{ with $values.detail }}}}{{{{ .Labels.{name} }}}}{{{{ end }}}}"


_HOST = '{{ reReplaceAll "/$" "" externalURL }}'
_SERVICE = "?var-service={{ $labels.service | urlquery }}"
_TIMES = f"from={_text('from_ms')}&to={_text('to_ms')}"
_BURN_LABELS = ("tenant", "service", "vantage", "objective", "severity")
_BURN_TEXTS = ("message", "trace", "from_ms", "to_ms")
_MESSAGE = f"{{{{ with $values.detail }}}}{_visible('.Labels.message')}{{{{ end }}}}"
_BURN_STREAM = "/d/legato-stream/stream?var-stream=" + _text("trace")

RULES = (
    Rule(
        "itl_burn",
        "ITL goodput burns its budget",
        burn.ITL,
        _BURN_LABELS,
        (),
        f"{_label('service')} ({_label('vantage')}): streams freeze or fail",
        _MESSAGE,
        "/d/legato-attribution/jitter" + _SERVICE + "&" + _TIMES,
        texts=_BURN_TEXTS,
        stream=_BURN_STREAM,
    ),
    Rule(
        "ttft_burn",
        "First outputs are late",
        burn.TTFT,
        _BURN_LABELS,
        (),
        f"{_label('service')} ({_label('vantage')}): first outputs are late",
        _MESSAGE + " These streams had no other fault: check queue and prefill.",
        "/d/legato-nodes/nodes?" + _TIMES,
        texts=_BURN_TEXTS,
        stream=_BURN_STREAM,
    ),
    Rule(
        "reader_burn",
        "End users' own stalls burn their budget",
        burn.END_USERS,
        _BURN_LABELS,
        (),
        f"{_label('service')} ({_label('vantage')}): stalls on the end users' side",
        _MESSAGE
        + " The service is not at fault: the application held the stream, did not read its socket, or one end user's connection failed.",
        "/d/legato-attribution/jitter" + _SERVICE + "&" + _TIMES,
        texts=_BURN_TEXTS,
        stream=_BURN_STREAM,
    ),
    Rule(
        "streams_stalled",
        "Running streams stand still",
        running.STALLED,
        ("tenant", "service", "vantage"),
        ("stalled", "in_flight", "longest_s"),
        f"{_label('service')} ({_label('vantage')}): running streams stand still",
        f"{_figure('stalled')} of {_figure('in_flight')} running streams have had no content for 8 s or more, the longest for "
        f"{_figure('longest_s', 'humanizeDuration')}. They have not ended, so no burn rate counts them yet.",
        "/d/legato-now/now" + _SERVICE,
        severity="page",
    ),
    Rule(
        "streams_unanswered",
        "Running streams get no first content",
        running.UNANSWERED,
        ("tenant", "service", "vantage"),
        ("stalled", "in_flight", "longest_s"),
        f"{_label('service')} ({_label('vantage')}): running streams get no first content",
        f"{_figure('stalled')} of {_figure('in_flight')} running streams have had no content since their request, for 30 s or more and "
        f"for twice the time that is usual for their model, the longest for {_figure('longest_s', 'humanizeDuration')}. They have not "
        "ended, so no burn rate counts them yet.",
        "/d/legato-now/now" + _SERVICE,
        severity="page",
        hold="1m",
    ),
    Rule(
        "preemption_storm",
        "An engine preempts continuously",
        others.PREEMPTION,
        ("tenant", "engine"),
        ("minutes_preempting", "requests_preempted", "kv_used_max"),
        f"{_label('engine')}: KV cache too small for the load",
        f"{_label('engine')} preempted requests in {_figure('minutes_preempting')} of the last 60 minutes, "
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
        f"{_label('provider')} {_label('model')}: chunk size changed",
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
        f"legato on {_label('host')}: {_label('what')}",
        f"{_label('what')} = {_figure('value')}, the limit is {_figure('bound')}. Until this is fixed, dashboards and alerts are "
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
        f"collector on {_label('host')}: queue of {_label('exporter')} fills",
        f"Its queue is {_figure('in_use', 'humanizePercentage')} full. When it is full, the Collector answers 503; senders drop what they "
        "cannot keep.",
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
        "data": [*(_query(rule, column) for column in columns), *([_detail(rule)] if rule.texts else []), _threshold()],
        # No row means no stream, no engine or no finding: nothing to report.
        "noDataState": "OK",
        # If the read endpoint is down, not each rule reports it. A statement may also fail alone, as for its limit of time.
        "execErrState": "Error" if rule.name in _REPORTS_ERRORS else "KeepLast",
        "for": rule.hold,
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "dashboard": _HOST + rule.dashboard,
            "runbook_url": f"{_HOST}/d/legato-runbook/runbook?viewPanel=panel-{panel_of(rule.name)}",
            **({"stream": _HOST + rule.stream} if rule.stream else {}),
        },
        "labels": {"product": "legato", **({"severity": rule.severity} if rule.severity else {})},
        "isPaused": False,
    }


def _query(rule: Rule, column: str) -> dict[str, Any]:
    return _select(column, rule.sql, rule.labels, f"toFloat64({column}) AS {column}")


def _detail(rule: Rule) -> dict[str, Any]:
    """Return the query that has the texts of the message as labels. Its number has no meaning."""
    return _select("detail", rule.sql, (*rule.labels, *rule.texts), "1. AS detail")


def _select(ref: str, sql: str, labels: Sequence[str], number: str) -> dict[str, Any]:
    names = ", ".join(f"{label}::String AS {label}" for label in labels)
    sql = f"SELECT {names}, {number}\nFROM\n(\n{sql}\n)"
    model = {"refId": ref, "editorType": "sql", "rawSql": sql, "format": 1, "queryType": "table", "pluginVersion": "4.20.0"}
    model["datasource"] = {"type": PLUGIN, "uid": "legato"}
    return {"refId": ref, "relativeTimeRange": {"from": _BEHIND_S, "to": 0}, "datasourceUid": "legato", "model": model}


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
