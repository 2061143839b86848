"""Objectives are data: a changed file counts by one command, in the reports, rollups and burn rates of a running `legato serve`."""

from __future__ import annotations

import pathlib
import re
import time

import httpx
import pytest

from helpers.builders.spans import SECOND_NS, native_span, request, steady_timeline
from helpers.repo.repository import ROOT
from helpers.servers.serving import Served, legato, legato_json, serve_process
from helpers.servers.waiting import until
from legato_ingest.cli.client import Reader

(EXAMPLE,) = re.findall(r"```toml\n(# The first objective.*?)```", (ROOT / "docs" / "operating.md").read_text(encoding="utf-8"), re.DOTALL)
SERVICES = {"voice-1": 300_000, "shop": 300_000, "slow": 3_000_000}


def send(served: Served) -> None:
    """Post 20 streams of each service; its gaps have the length (us) of ``SERVICES``."""
    for service, gap_us in SERVICES.items():
        body = request({"service.name": service})
        for _ in range(20):
            attributes = {"legato.stream.timeline": steady_timeline(4, gap_us), "gen_ai.request.model": f"{service}-batch"}
            if service != "slow":
                attributes["gen_ai.request.model"] = "m"
            native_span(body, attributes, start_ns=time.time_ns() - 120 * SECOND_NS, duration_ns=15 * SECOND_NS)
        reply = httpx.post(f"{served.otlp}/v1/traces", content=body.SerializeToString(), headers={"Content-Type": "application/x-protobuf"})
        assert reply.status_code == 200 and not reply.content


def good(served: Served) -> dict[str, tuple[int, int, int]]:
    """Return the good streams of each service: by the rollups, by the view, by `legato report`."""
    reader = Reader(served.read)
    tables = (
        "SELECT service_name AS s, toInt64(sum(good)) AS n FROM stream_minutes FINAL GROUP BY s",
        "SELECT service_name AS s, toInt64(countIf(good = 1)) AS n FROM streams GROUP BY s",
    )
    rolled, listed = ({row["s"]: int(row["n"]) for row in reader.rows(sql)} for sql in tables)
    report = legato_json("report", environ=served.environ)
    reported = {each["service"]: int(each["goodput"]["good"]) for each in report["groups"]}
    return {service: (rolled.get(service, 0), listed[service], number) for service, number in reported.items()}


def counted(served: Served) -> dict[tuple[str, str], float]:
    """Return the counters of /metrics by service and result, without those that are 0, after the inserts that a reader waits for."""
    httpx.post(served.read, content="SELECT 1").raise_for_status()
    found = re.findall(
        r'legato_streams_total\{result="(\w+)",service="([^"]+)",vantage="client"\} (\S+)', httpx.get(f"{served.otlp}/metrics").text
    )
    return {(service, result): float(number) for result, service, number in found if float(number)}


def test_a_changed_file_counts_by_one_command(tmp_path: pathlib.Path) -> None:
    """First without objectives, then with those of the documentation: gaps of 300 ms are bad for voice, and 3 s are good for a batch."""
    path = tmp_path / "objectives.toml"
    path.write_text("", encoding="utf-8")
    # On a busy machine a report may take longer than the usual limit.
    settings = {"LEGATO_OBJECTIVES_FILE": str(path), "LEGATO_ROLLUP_EVERY_S": "0.1", "LEGATO_QUERY_SECONDS_MAX": "60"}
    with serve_process(tmp_path / "store", **settings) as served:
        send(served)
        before = {("voice-1", "good"): 20.0, ("shop", "good"): 20.0, ("slow", "gap"): 20.0}
        assert counted(served) == before
        until(lambda: good(served) == {"voice-1": (20, 20, 20), "shop": (20, 20, 20), "slow": (0, 0, 0)})
        path.write_text(EXAMPLE, encoding="utf-8")
        done = legato("objectives", "apply", environ=served.environ)
        assert done.stdout.startswith("3 objectives applied; "), done.stdout + done.stderr
        assert good(served) == {"voice-1": (0, 0, 0), "shop": (20, 20, 20), "slow": (20, 20, 20)}
        _check_budgets(served)

        def counts_by_the_file() -> bool:
            """The counters follow within some seconds; earlier counts stay."""
            send(served)
            return ("voice-1", "gap") in counted(served)

        until(counts_by_the_file)
        assert counted(served)["slow", "good"] == counted(served)["voice-1", "gap"]
        path.write_text("[[objective]]\nname = 'a'\ntarget = 2", encoding="utf-8")
        wrong = legato("objectives", "apply", environ=served.environ)
        assert wrong.returncode == 1 and "objective 1: 'target' has value 2" in wrong.stderr


def _check_budgets(served: Served) -> None:
    """Each objective has the budget of its target: all 20 streams of voice are bad, which is 1,000 times one in a thousand."""
    shown = legato("objectives", "show", environ={**served.environ, "COLUMNS": "100"}).stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert re.search(r"voice +service voice-\* +99\.9 % +250 ms +800 ms", shown), shown
    assert re.search(r"default +all others +99 % +400 ms +2\.00 s", shown) and lines["voice"].endswith("none, used 1,000.0 times"), shown
    burning = legato_json("slo", environ=served.environ)
    rates = {(row["service"], row["objective"]): row["burn_rate"] for row in burning if row["rule"] == "itl_burn"}
    assert rates["voice-1", "voice"] == pytest.approx(1_000) and rates["shop", "default"] == rates["slow", "batch"] == 0
