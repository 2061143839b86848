"""The dashboard `nodes`: each panel equals a loop over the engines' steps and the nodes' samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from helpers.dashboards.panels import ALL, ENGINE, Asked, Past, Row, View, by, check, grouped, panels, quantile, ratio, shown, statements
from legato_ingest.dashboards.macros import Range

BOARD = "nodes"
MODELS = {"tenant": "tenant", "model": "model"}
HOSTS = {**ENGINE, "host": "host"}
SERVICE = {**MODELS, "service": "service_name"}
RECENT_MS = 15 * 60_000


def _served(past: Past, rows: list[Row], view: View) -> list[Row]:
    """The rows of the engines that served the chosen services and models; all rows if none is chosen."""
    if all(view.chosen(name) == [ALL] for name in ("service", "model")):
        return rows
    low_s, high_s = view.span.to_ms // 1000 - RECENT_MS // 1000, view.span.to_ms // 1000
    recent = [row for row in past.streams if low_s * 10**9 < row["start_time"] <= high_s * 10**9]
    traces = {(row["tenant"], row["trace_id"]) for row in recent if view.shows(row, SERVICE)}
    engines = {(row["tenant"], row["engine_id"]) for row in recent if row["engine_id"] and (row["tenant"], row["trace_id"]) in traces}
    engines |= {(row["tenant"], row["engine_id"]) for row in shown(past.stalls, view, SERVICE)}
    engines |= {(row["tenant"], row["engine_id"]) for row in _of_stalled_minutes(past, view) if row["engine_id"]}
    return [row for row in rows if (row["tenant"], row["engine_id"]) in engines]


def _of_stalled_minutes(past: Past, view: View) -> list[Row]:
    """The servers' streams that began in the 15 minutes in which those of the chosen services and models stalled most."""
    servers = [row for row in shown(past.streams, view, SERVICE) if row["vantage"] != "client"]
    stalls = {minute: sum(row["stalls_250ms"] or 0 for row in rows if row["is_over"]) for minute, rows in by(servers, _minute).items()}
    ranked = sorted(((count, minute) for minute, count in stalls.items() if count), reverse=True)
    worst = {minute for _, minute in ranked[:15]}
    return [row for row in shown(past.streams, view, SERVICE) if row["minute"] in worst and view.has_ns(row["start_time"])]


def _minute(row: Row) -> int:
    return int(row["minute"])


def _steps(past: Past, view: View) -> list[Row]:
    return _served(past, shown(past.steps, view, ENGINE), view)


def _known(rows: list[Row], *names: str) -> list[Row]:
    return [row for row in rows if all(row[name] is not None for name in names)]


def _sum(rows: list[Row], name: str) -> Any:
    return sum(row[name] for row in rows if row[name] is not None)


def _s(us: float | None) -> float | None:
    return None if us is None else us / 1e6


def _by_engine(rows: list[Row], view: View, made: Any) -> list[Row]:
    def row_of(key: Any, group: list[Row]) -> Row:
        return {"time": key[0], "engine": key[1], **made(group)}

    return grouped(rows, lambda row: (view.point(row["minute"]), row["engine_id"]), row_of)


def kv(past: Past, view: View) -> list[Row]:
    """KV cache usage over the steps with a known value."""

    def made(rows: list[Row]) -> Row:
        used = [row["kv_used_ppm"] for row in rows]
        return {"KV max": max(used) / 1e6, "KV mean": sum(used) / 1e6 / len(used)}

    return _by_engine(_known(_steps(past, view), "kv_used_ppm"), view, made)


def preemptions(past: Past, view: View) -> list[Row]:
    """The rate over the complete minutes of a point."""

    def made(rows: list[Row]) -> Row:
        return {"preempted per minute": 60 * _sum(rows, "preempted") / view.seconds_of(view.point(rows[0]["minute"]))}

    return _by_engine([row for row in _steps(past, view) if view.has_whole_minute(row["minute"])], view, made)


WORK = ("prefill_tokens", "decode_tokens", "decode_requests")


def work(past: Past, view: View) -> list[Row]:
    """Tokens per step over the steps with known tokens and requests."""

    def made(rows: list[Row]) -> Row:
        return {f"{kind} tokens per step": _sum(rows, f"{kind}_tokens") / len(rows) for kind in ("prefill", "decode")}

    return _by_engine(_known(_steps(past, view), *WORK), view, made)


def _intervals(rows: list[Row]) -> tuple[list[Any], list[Any]]:
    return [row["interval_us"] for row in rows], [row["interval_us"] for row in rows if row["prefill_tokens"] == 0]


def step_time(past: Past, view: View) -> list[Row]:
    """Step times of all steps and of steps without a prefill."""

    def made(rows: list[Row]) -> Row:
        every, pure = _intervals(rows)
        return {
            "step p50": _s(quantile(every, 0.5)),
            "step p99": _s(quantile(every, 0.99)),
            "base: no prefill, p50": _s(quantile(pure, 0.5)),
        }

    return _by_engine(_steps(past, view), view, made)


def queue(past: Past, view: View) -> list[Row]:
    """Running and waiting requests, in minutes with a known number of running requests."""
    steps = _steps(past, view)
    minutes = {(row["tenant"], row["engine_id"], row["minute"]) for row in _known(steps, "running")}
    rows = [row for row in steps if (row["tenant"], row["engine_id"], row["minute"]) in minutes]

    def made(group: list[Row]) -> Row:
        running = _known(group, "running")
        waiting = max((row["waiting"] or 0 for row in group), default=0)
        return {"running, mean": _sum(running, "running") / len(running), "waiting, max": waiting}

    return _by_engine(rows, view, made)


def speculation(past: Past, view: View) -> list[Row]:
    """Accepted drafts, in minutes with draft tokens."""
    steps = _steps(past, view)
    drafted = by(steps, lambda row: (row["tenant"], row["engine_id"], row["minute"]))
    minutes = {key for key, rows in drafted.items() if _sum(_known(rows, "draft_tokens", "accepted_tokens"), "draft_tokens") > 0}
    rows = [row for row in steps if (row["tenant"], row["engine_id"], row["minute"]) in minutes]

    def made(group: list[Row]) -> Row:
        drafts, known = _known(group, "draft_tokens", "accepted_tokens"), _known(group, *WORK)
        return {
            "drafts accepted": _sum(drafts, "accepted_tokens") / _sum(drafts, "draft_tokens"),
            "tokens per request and step": ratio(_sum(known, "decode_tokens"), _sum(known, "decode_requests")),
        }

    return _by_engine(rows, view, made)


def stalls(past: Past, view: View) -> list[Row]:
    """Stalls charged to known engines."""
    rows = _served(past, [row for row in shown(past.stalls, view, ENGINE) if row["engine_id"]], view)
    return grouped(
        rows,
        lambda row: (view.point(row["minute"]), f"{row['engine_id']} · {row['cause']}"),
        lambda key, group: {"time": key[0], "what": key[1], "stalls": len(group)},
    )


def _samples(past: Past, view: View, *metrics: str) -> list[Row]:
    rows = [row for row in past.samples if row["metric"] in metrics and row["value"] is not None]
    return _served(past, [row for row in rows if view.has_ns(row["recorded_at"]) and view.shows(row, HOSTS)], view)


def _in_whole_minutes(view: View, rows: list[Row]) -> list[Row]:
    return [row for row in rows if view.has_whole_minute(row["recorded_at"] / 10**9)]


def _grown(rows: list[Row]) -> list[Row]:
    """Each sample with the growth of its counter since the previous sample in the range. A decrease is a restart from 0."""
    out = []
    for series in by(rows, lambda row: (row["tenant"], row["series"])).values():
        before = None
        for row in sorted(series, key=lambda row: row["recorded_at"]):
            value = row["value"]
            out.append({**row, "grown": 0 if before is None else value - before if value >= before else value})
            before = value
    return out


def _point(view: View, row: Row) -> int:
    return view.point(row["recorded_at"] // 10**9)


def _node(row: Row) -> str:
    return str(row["host"] or row["engine_id"])


PREFIX_CACHE = [name for of in ("hits", "queries") for name in (f"legato.engine.prefix_cache.{of}", f"vllm:prefix_cache_{of}_total")]


def prefix_cache(past: Past, view: View) -> list[Row]:
    """Hits divided by queries, at points with queries."""
    rows = _grown(_samples(past, view, *PREFIX_CACHE))
    made = []
    for (at, engine), group in by(rows, lambda row: (_point(view, row), row["engine_id"])).items():
        hits, queries = (sum(row["grown"] for row in group if kind in row["metric"]) for kind in ("hits", "queries"))
        if queries > 0:
            made.append({"time": at, "engine": engine, "prefix-cache hits": hits / queries})
    return made


def _per_engine(view: View, rows: list[Row], made: Any) -> list[Row]:
    def row_of(key: Any, group: list[Row]) -> Row:
        return {"time": key[0], "engine": key[1], **made(group)}

    return grouped(rows, lambda row: (_point(view, row), row["engine_id"]), row_of)


def _of(rows: list[Row], *metrics: str) -> list[Row]:
    return [row for row in rows if row["metric"] in metrics]


SCRAPED_KV = ("legato.engine.kv_cache.utilization", "vllm:kv_cache_usage_perc")
RUNNING, WAITING = (
    tuple(f"{stem}{state}" for stem in ("legato.engine.requests.", "vllm:num_requests_")) for state in ("running", "waiting")
)
TOKENS = ("legato.engine.tokens.generated", "vllm:generation_tokens_total")
PREEMPTED = ("legato.engine.preemptions", "vllm:num_preemptions_total")


def scraped_kv(past: Past, view: View) -> list[Row]:
    """Scraped KV cache usage, under the agent's or the Collector's metric name."""

    def made(rows: list[Row]) -> Row:
        return {"KV max": max(row["value"] for row in rows), "KV mean": _mean(rows)}

    return _per_engine(view, _samples(past, view, *SCRAPED_KV), made)


def scraped_queue(past: Past, view: View) -> list[Row]:
    """Scraped running and waiting requests, at points with a number of running requests."""
    rows = _samples(past, view, *RUNNING, *WAITING)
    known = {(_point(view, row), row["engine_id"]) for row in _of(rows, *RUNNING)}

    def series(group: list[Row], metrics: Sequence[str]) -> list[list[Row]]:
        """The samples of each series under the agent's name if there is one, otherwise under the Collector's."""
        return list(by(next((found for name in metrics if (found := _of(group, name))), []), lambda row: row["series"]).values())

    def made(group: list[Row]) -> Row:
        waiting = [max(row["value"] for row in rows) for rows in series(group, WAITING)]
        return {"running, mean": sum(_mean(rows) for rows in series(group, RUNNING)), "waiting, max": sum(waiting) if waiting else None}

    return _per_engine(view, [row for row in rows if (_point(view, row), row["engine_id"]) in known], made)


def scraped_tokens(past: Past, view: View) -> list[Row]:
    """The rates over the complete minutes of a point."""

    def made(group: list[Row]) -> Row:
        length_s = view.seconds_of(_point(view, group[0]))
        # The agent's metric if there is one, otherwise the Collector's; never both.
        tokens, preempted = (sum(row["grown"] for row in _of(group, own) or _of(group, other)) for own, other in (TOKENS, PREEMPTED))
        return {"tokens per second": tokens / length_s, "preempted per minute": 60 * preempted / length_s}

    return _per_engine(view, _in_whole_minutes(view, _grown(_samples(past, view, *TOKENS, *PREEMPTED))), made)


DRAFTED = ("legato.engine.speculation.draft_tokens", "vllm:spec_decode_num_draft_tokens_total")
ACCEPTED = ("legato.engine.speculation.accepted_tokens", "vllm:spec_decode_num_accepted_tokens_total")
LENGTH = "legato.engine.speculation.accept_length"


def scraped_speculation(past: Past, view: View) -> list[Row]:
    """Scraped speculation figures, at points with new drafts or a known accept length."""

    def made(group: list[Row]) -> Row:
        drafted, accepted = (sum(row["grown"] for row in _of(group, own) or _of(group, other)) for own, other in (DRAFTED, ACCEPTED))
        lengths = [row for row in _of(group, LENGTH) if row["value"] > 0]
        return {"drafts accepted": ratio(accepted, drafted), "tokens per request and step": _mean(lengths) if lengths else None}

    rows = _per_engine(view, _grown(_samples(past, view, *DRAFTED, *ACCEPTED, LENGTH)), made)
    return [row for row in rows if row["drafts accepted"] is not None or row["tokens per request and step"] is not None]


WAITS = {"queue": "legato.engine.queue.time", "prefill": "legato.engine.prefill.time", "first token": "legato.engine.ttft"}


def scraped_waits(past: Past, view: View) -> list[Row]:
    """Mean waiting times from delta histograms."""
    rows = [row for row in past.samples if row["metric"] in WAITS.values() and row["temporality"] == "delta" and row["count"]]
    rows = [row for row in rows if row["sum"] is not None and view.has_ns(row["recorded_at"]) and view.shows(row, HOSTS)]
    rows = _served(past, rows, view)

    def made(group: list[Row]) -> Row:
        own = {name: _of(group, metric) for name, metric in WAITS.items()}
        return {f"{name}, mean": ratio(_sum(each, "sum"), _sum(each, "count")) for name, each in own.items()}

    return _per_engine(view, rows, made)


def ttft(past: Past, view: View) -> list[Row]:
    """TTFT of the servers' streams. Only tenant and model filter them, so servers without engines count, too."""
    rows = [row for row in shown(past.streams, view, MODELS) if row["vantage"] == "server"]

    def made(at: int, group: list[Row]) -> Row:
        first = [row["ttft_us"] for row in group if row["is_over"]]
        return {"time": at, "TTFT p50": _s(quantile(first, 0.5)), "TTFT p95": _s(quantile(first, 0.95))}

    return grouped(rows, lambda row: view.point(row["minute"]), made)


def _mean(rows: list[Row]) -> float:
    return float(sum(row["value"] for row in rows) / len(rows))


def gpu_clocks(past: Past, view: View) -> list[Row]:
    """One curve per GPU and clock."""
    rows = _samples(past, view, "hw.gpu.clock.sm", "hw.gpu.clock.memory")

    def key(row: Row) -> Any:
        name = f"{_node(row)} · {row['attributes']['hw.id']} · {row['metric'].removeprefix('hw.gpu.')}"
        return _point(view, row), name

    return grouped(rows, key, lambda key, group: {"time": key[0], "gpu": key[1], "hertz": 1e6 * _mean(group)})


def throttling(past: Past, view: View) -> list[Row]:
    """The share of time with throttling, by GPU and reason."""
    rows = _in_whole_minutes(view, _grown(_samples(past, view, "hw.gpu.throttle.time")))

    def key(row: Row) -> Any:
        return _point(view, row), f"{_node(row)} · {row['attributes']['hw.id']} · {row['attributes']['reason']}"

    def made(key: Any, group: list[Row]) -> Row:
        return {"time": key[0], "why": key[1], "share of time": sum(row["grown"] for row in group) / view.seconds_of(key[0])}

    return grouped(rows, key, made)


def power(past: Past, view: View) -> list[Row]:
    """GPU power, under either of its two metric names."""
    rows = _samples(past, view, "hw.gpu.power", "hw.power")

    def key(row: Row) -> Any:
        return _point(view, row), f"{_node(row)} · {row['attributes']['hw.id']}"

    return grouped(rows, key, lambda key, group: {"time": key[0], "gpu": key[1], "watts": _mean(group)})


def host_cpu(past: Past, view: View) -> list[Row]:
    """The share of CPU time that is not idle, with either attribute name for the mode."""
    rows = _samples(past, view, "system.cpu.utilization")
    idle = [row for row in rows if "idle" in (row["attributes"].get("cpu.mode"), row["attributes"].get("state"))]
    return grouped(
        idle,
        lambda row: (_point(view, row), row["host"] or "(none)"),
        lambda key, group: {"time": key[0], "node": key[1], "busy": 1 - _mean(group)},
    )


def engines(past: Past, view: View) -> list[Row]:
    """One row per engine."""

    def made(engine: str, rows: list[Row]) -> Row:
        every, pure = _intervals(rows)
        known = _known(rows, *WORK)
        return {
            "engine": engine,
            "steps": len(rows),
            "base": _s(quantile(pure, 0.5)),
            "step p99": _s(quantile(every, 0.99)),
            "KV max": _s(max((row["kv_used_ppm"] for row in _known(rows, "kv_used_ppm")), default=None)),
            "preempted": _sum(rows, "preempted"),
            "waiting max": max((row["waiting"] for row in _known(rows, "waiting")), default=0),
            "prefill steps": ratio(sum(row["prefill_tokens"] > 0 for row in known), len(known)),
            "first seen": min(row["minute"] for row in rows),
            "last seen": max(row["minute"] for row in rows),
        }

    return grouped(_steps(past, view), lambda row: row["engine_id"], made)


EXPECTED = {
    "KV cache used": kv,
    "Preemptions": preemptions,
    "Work per step": work,
    "Step time against its base": step_time,
    "Running and waiting": queue,
    "Stalls charged to each engine": stalls,
    "Speculation": speculation,
    "KV cache used, scraped": scraped_kv,
    "Running and waiting, scraped": scraped_queue,
    "Tokens and preemptions, scraped": scraped_tokens,
    "Speculation, scraped": scraped_speculation,
    "First token by phase, scraped": scraped_waits,
    "Prefix-cache hits": prefix_cache,
    "TTFT at the servers": ttft,
    "GPU clocks": gpu_clocks,
    "GPU throttling": throttling,
    "GPU power": power,
    "Host CPU": host_cpu,
    "Engines": engines,
}


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_steps_and_samples(asked: Asked, title: str) -> None:
    """The panel returns the expected rows and columns in every view."""
    check(asked, BOARD, title, EXPECTED[title])


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() == panels(BOARD).keys()


# Variables.


def _options(asked: Asked, variable: str, view: View) -> set[str]:
    return {str(row["name"]) for row in asked.sql(statements(BOARD)[f"variable {variable}"], view).as_rows()}


def test_engines_and_hosts_follow_from_the_service(asked: Asked) -> None:
    """A chosen service leaves its engines, a chosen engine the hosts of its samples; a service without engines leaves none."""
    every = asked.past.view("", 4, 60)
    engines, hosts = (_options(asked, variable, every) for variable in ("engine", "host"))
    assert {"shop-gpu-1", "spec-1"} <= engines and {"node-3", "node-4"} <= hosts
    shop = asked.past.view("", 4, 60, {"service": "shop"})
    found = _options(asked, "engine", shop)
    assert "shop-gpu-1" in found < engines and "spec-1" not in found
    assert _options(asked, "engine", asked.past.view("", 4, 60, {"service": "nothing"})) == set()
    paged = asked.past.view("", 4, 60, {"engine": "paged-0"})
    assert _options(asked, "host", paged) <= {"node-4"} and "node-3" not in _options(asked, "host", shop)


def test_an_engine_without_stalls_is_found(asked: Asked) -> None:
    """The streams of the last 15 minutes of a range name their engines, also those that stalled none of them."""
    past, quiet = asked.past, past_without_stalls(asked.past)
    row = next(row for row in past.streams if row["engine_id"] and row["service_name"])
    to_ms = row["start_time"] // 10**6 + 60_000
    for values in ({"service": row["service_name"]}, {"model": row["model"]}):
        view = View("", Range(to_ms - 20 * 60_000, to_ms, 60_000), values)
        assert [each for each in _served(quiet, [row], view)] == [row]
        found = asked.panel(BOARD, "Engines", view).as_rows()
        assert [each["engine"] for each in found] == sorted({each["engine_id"] for each in _steps(past, view)})


def past_without_stalls(past: Past) -> Past:
    """The same past without verdicts on stalls."""
    return Past(past.now_ns, past.tenant, {**past.tables, "stalls": []})
