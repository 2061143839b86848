"""The texts of alerts, rendered by Go's templates as Grafana and Prometheus do: nothing of a hostile name is unseen in a chat or a mail."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from dashboards.alerts.rules import provisioned
from helpers.builders.hostile import HOSTILE, unseen
from helpers.repo.repository import ROOT

# The functions of the same names in Prometheus' package `template`, which Grafana uses, too. Figures are not the point here.
PROGRAM = r"""
package main

import ("encoding/json"; "fmt"; "os"; "regexp"; "strings"; "text/template")

type Value struct { Labels map[string]string; Value float64 }
type Given struct { Labels map[string]string; Texts []string }

func main() {
	var given Given
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil { panic(err) }
	word := func(any) string { return "5" }
	functions := template.FuncMap{
		"reReplaceAll": func(pattern, repl, text string) string { return regexp.MustCompile(pattern).ReplaceAllString(text, repl) },
		"externalURL": func() string { return "https://grafana.example/" },
		"humanize": word, "humanizeDuration": word, "humanizePercentage": word, "humanizeTimestamp": word,
	}
	values := map[string]Value{}
	for _, name := range strings.Fields("stalled in_flight longest_s detail value bound in_use share_before share_after rate_ratio " +
		"changed_s minutes_preempting requests_preempted kv_used_max") { values[name] = Value{given.Labels, 5} }
	out := []string{}
	for _, text := range given.Texts {
		head := "{{ $labels := .Labels }}{{ $values := .Values }}{{ $value := .Value }}"
		var made strings.Builder
		parsed := template.Must(template.New("").Funcs(functions).Option("missingkey=error").Parse(head + text))
		if err := parsed.Execute(&made, map[string]any{"Labels": given.Labels, "Values": values, "Value": 5.0}); err != nil { panic(err) }
		out = append(out, made.String())
	}
	encoded, _ := json.Marshal(out)
	fmt.Println(string(encoded))
}
"""
PLAIN = "größe 模型-1 🦙"
NAMES = (
    "tenant",
    "service",
    "objective",
    "severity",
    "engine",
    "model",
    "provider",
    "route",
    "host",
    "what",
    "exporter",
    "message",
)


def _rendered(texts: list[str], name: str, folder: pathlib.Path) -> list[str]:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    (folder / "main.go").write_text(PROGRAM, encoding="utf-8")
    labels = {**dict.fromkeys(NAMES, name), "vantage": "client", "trace": "ab", "from_ms": "1", "to_ms": "2"}
    given = json.dumps({"Labels": labels, "Texts": texts})
    run = subprocess.run([go, "run", "main.go"], cwd=folder, input=given, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return list(json.loads(run.stdout))


def _of_grafana() -> list[str]:
    return [text for group in provisioned()["groups"] for rule in group["rules"] for text in rule["annotations"].values()]


def _of_prometheus() -> list[str]:
    """The texts with names that senders choose; `instance`, `stage` and `exporter` are the installation's own."""
    file: dict[str, Any] = yaml.safe_load((ROOT / "dashboards" / "alerts" / "prometheus.yml").read_text(encoding="utf-8"))
    rules = [rule for group in file["groups"] for rule in group["rules"]]
    texts = [text for rule in rules for text in rule.get("annotations", {}).values()]
    return [text for text in texts if not any(f"$labels.{name}" in text for name in ("instance", "stage", "exporter"))]


@pytest.mark.parametrize("texts_of", [_of_grafana, _of_prometheus])
def test_no_text_of_an_alert_has_a_character_that_is_not_seen(tmp_path: pathlib.Path, texts_of: Callable[[], list[str]]) -> None:
    """In summaries, descriptions and links of all rules; an ordinary name is unchanged."""
    texts = texts_of()
    assert sum("$labels.service" in text for text in texts) >= 4
    for text, hostile, plain in zip(texts, _rendered(texts, HOSTILE, tmp_path), _rendered(texts, PLAIN, tmp_path), strict=True):
        assert not unseen(hostile) and "\n" not in hostile and "\ufffd" not in plain, text
        assert "reReplaceAll `" not in text or ("\ufffd" in hostile and PLAIN in plain)
