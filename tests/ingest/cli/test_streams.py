"""Tests of the views of `legato streams` and `legato stream`."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from legato_ingest.cli.streams import as_json, render_list, render_stream

SECOND_NS = 1_000_000_000


def row(vantage: str = "client", dts_ms: tuple[float, ...] = (400, *(20,) * 40, 600, *(20,) * 40), **more: Any) -> dict[str, Any]:
    """A row of the query of vantages."""
    n = len(dts_ms)
    return {
        "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span": "00f067aa0ba902b7",
        "start_ns": 100 * SECOND_NS,
        "start": "2026-01-02 03:04:05.000000000",
        "rev": 1,
        "ended": True,
        "duration_ns": round(sum(dts_ms) * 1e6),
        "flags": [],
        "vantage": vantage,
        "outcome": "complete",
        "error_type": "",
        "service": "shop",
        "service_version": "",
        "provider": "openai",
        "model": "model-a",
        "response_model": "",
        "response_id": "chatcmpl-1",
        "finish_reason": "stop",
        "route": "",
        "engine_id": "",
        "emitter": "legato-python/0.1.0",
        "transport": "http/1.1",
        "clock": "",
        "input_tokens": None,
        "output_tokens": 81,
        "wire_bytes": None,
        "chunks": n,
        "chunks_dropped": 0,
        "content_chunks": n,
        "content_bytes": 4 * n,
        "ttfb_us": 3_000,
        "ttft_us": 400_000,
        "ttfo_us": 400_000,
        "gaps": n - 1,
        "gap_max_us": 600_000,
        "gap_open_us": None,
        "gap_p50_us": 20_000,
        "gap_p99_us": 600_000,
        "stalls_250ms": 1,
        "excess_250ms_us": 350_000,
        "jitter_ratio": 30.0,
        "tokens_per_chunk": None,
        "hold_sum_us": None,
        "hold_max_us": None,
        "dt_us": [round(dt * 1_000) for dt in dts_ms],
        "chunk_bytes": [4] * n,
        "chunk_tokens": [],
        "chunk_kind": [1] * n,
        "chunk_hold_64us": [],
        "good": 0,
        **more,
    }


SUMMARY: dict[str, Any] = {
    "dt_us": [],
    "chunk_bytes": [],
    "chunk_kind": [],
    "content_chunks": None,
    "content_bytes": None,
    "gaps": None,
    "gap_max_us": None,
    "gap_p50_us": None,
    "gap_p99_us": None,
    "stalls_250ms": None,
    "excess_250ms_us": None,
    "jitter_ratio": None,
    "ttfo_us": None,
    "good": None,
}


def text(page: RenderableType, width: int = 120) -> str:
    """The view as text in a terminal of this width."""
    out = io.StringIO()
    Console(width=width, file=out, highlight=False).print(page)
    return out.getvalue()


def line_of(page: str, start: str) -> str:
    """The line with this beginning."""
    return next(line for line in page.splitlines() if line.startswith(start))


def test_one_stream_at_one_vantage() -> None:
    """Facts, the drawing, the stall and the read that ended it."""
    page = text(render_stream([row()], 120))
    assert "max 600 ms / 600 ms (n=81)" in page and "82 (82 text; 328 B)" in page and "3.0 ms / 400 ms / 400 ms" in page
    assert (
        "client · shop: stalls of 250 ms or more" in page
        and line_of(page, "1.20 s").split() == "1.20 s 600 ms unknown 1 chunk, 4 B".split()
    )
    drawn = line_of(page, "client  ")
    assert "─" * 10 in drawn and drawn[11] == "·" and "clock" not in page.split("client  ")[0].split("not measured")[0]


def test_the_drawing_is_to_scale() -> None:
    """Each mark is the same time: the stall takes 600 of 2600 ms of the axis, the start 400."""
    drawn = line_of(text(render_stream([row()], 124), 124), "client  ")[11:].rstrip("\n")
    assert len(drawn) <= 100
    assert abs(drawn.count("─") - 100 * 600 / 2_600) <= 2 and abs(drawn.count("·") - 100 * 400 / 2_600) <= 2


def test_vantages_of_one_clock_share_the_axis() -> None:
    """The server, 300 ms later on the same clock, is drawn 300 ms further right, independent of its anchor."""
    client = row(clock="boot:4026:0")
    server = row("server", clock=f"boot:4026:{-200_000_000}", start_ns=100 * SECOND_NS + 100_000_000)
    page = text(render_stream([client, server], 124), 124)
    assert "all vantages have one clock: one time axis" in page
    above, below = line_of(page, "server ")[11:], line_of(page, "client  ")[11:]
    shift = above.index("─") - below.index("─")
    assert abs(shift - 100 * 300 / 2_900) <= 1 and page.index("server ") < page.index("client  ")
    assert [out["offset_us"] for out in as_json([client, server])] == [0, 300_000]


def test_vantages_of_different_clocks_start_at_their_own_zero() -> None:
    """The view states it."""
    page = text(render_stream([row(clock="a:1:0"), row("server", clock="b:1:0", start_ns=200 * SECOND_NS)], 124), 124)
    assert "the clocks differ or are unknown: each vantage is drawn from its own start" in page
    assert line_of(page, "server ")[11:].index("─") == line_of(page, "client  ")[11:].index("─")
    assert [out["offset_us"] for out in as_json([row(), row()])] == [None, None]


def test_unmeasured_facts_are_listed() -> None:
    """By vantage, as text."""
    assert "tokens of each chunk; time held by the application; its clock" in " ".join(text(render_stream([row()], 200), 200).split())
    page = text(render_stream([row(transport="iterator", ttfb_us=None, clock="a:1:0", chunk_bytes=[])], 200), 200)
    assert "reads and the first byte (recorded above the network); bytes of content" in page and "bytes unknown" in page
    page = text(render_stream([row(flags=["start_unknown"], ttft_us=None, ttfo_us=None)]), 400)
    assert "the first token (legato.wrap without start_ns)" in page
    summary = text(render_stream([row(**SUMMARY)], 200), 200)
    assert "its span had only a summary, so no gap is known" in summary and "timeline unknown" in summary and "stalls of" not in summary
    assert as_json([row(**SUMMARY)])[0]["stalls"] is None


EXPIRED: dict[str, Any] = {"dt_us": [], "chunk_bytes": [], "chunk_kind": []}


def test_an_expired_timeline_leaves_the_verdicts() -> None:
    """Timelines may be deleted before their streams: the statistics and the verdicts on the stalls are still shown."""
    judged = {
        "gap_start_us": 1_200_000, "gap_us": "600000", "parts": {"scheduling": 600_000_000}, "cause": "scheduling", "confidence": "strong",
        "step_first": "7", "step_last": "7", "missing": [], "culprit_responses": [], "evidence": {}, "excluded": {}, "error_us": 900,
    }  # fmt: skip
    (expired,) = made = [row(**EXPIRED, verdicts=[judged])]
    page = text(render_stream(made, 120), 120)
    assert "no stall" not in page and "its stalls are no longer stored (1 of 250 ms or more, the longest 600 ms)" in page
    assert "timeline no longer stored" in line_of(page, "client  ") and "LEGATO_RETENTION_TIMELINES_DAYS" in page
    assert "scheduling 600 ms · strong · step 7" in page
    assert as_json(made)[0]["stalls"] is None
    calm = {**expired, "gap_max_us": 90_000, "stalls_250ms": 0, "verdicts": []}
    assert "no stall of 250 ms or more" in text(render_stream([calm])) and as_json([calm])[0]["stalls"] == []


def test_the_open_gap_is_drawn_and_listed() -> None:
    """A dashed line, followed by nothing."""
    made = row(dts_ms=(100, 20, 20), outcome="client_cancel", gap_open_us=900_000, duration_ns=1_040_000_000)
    page = text(render_stream([made]))
    assert "╌" * 10 in line_of(page, "client  ") and "nothing: client_cancel" in page


def test_the_silence_of_a_running_stream_has_its_verdict() -> None:
    """In one sentence, that of its open gap alone; also where its chunks are not stored yet."""
    judged: dict[str, Any] = {
        "gap_start_us": "140000", "gap_us": "9000000", "parts": {"host": 9_000_000_000}, "cause": "host", "confidence": "strong",
        "step_first": None, "step_last": None, "missing": [], "culprit_responses": [], "evidence": {}, "excluded": {}, "error_us": 900,
    }  # fmt: skip
    silence = {"gap_start_us": 140_000, "silence_us": 32_300_000}
    made = row(dts_ms=(100, 20, 20), outcome="running", ended=False, verdicts=[judged], silence=silence)
    said = "client · shop: silent for 32.30 s, still running: host 9.00 s · strong"
    for shown in (made, {**made, **EXPIRED, "chunks": 0, "content_chunks": 0}, {**made, **SUMMARY}):
        assert said in text(render_stream([shown], 160), 160)
    earlier = text(render_stream([{**made, "silence": {**silence, "gap_start_us": 900_000}}], 160), 160)
    assert "client · shop: silent for 32.30 s, still running: not judged yet" in earlier


def test_holds_are_next_to_the_stall() -> None:
    """The hold time in the gap is shown."""
    page = text(render_stream([row(dts_ms=(100, 300), chunk_hold_64us=[4_600, 0], hold_sum_us=294_400, hold_max_us=294_400)]))
    assert line_of(page, "100 ms").split()[:6] == "100 ms 300 ms 294 ms".split() and "294 ms, longest 294 ms" in page


def test_many_stalls_are_cut() -> None:
    """A note names the option for the rest."""
    page = text(render_stream([row(dts_ms=(300,) * 60)]))
    assert "and 19 more: --json lists all of them" in page and len(as_json([row(dts_ms=(300,) * 60)])[0]["stalls"]) == 59


def test_no_stall_is_a_sentence() -> None:
    """A missing table would look like a failure."""
    assert "client · shop: no stall of 250 ms or more" in text(render_stream([row(dts_ms=(100, 20))]))


def test_a_stream_without_chunks() -> None:
    """No chunk and no duration: no division by zero."""
    page = text(render_stream([row(dts_ms=(), duration_ns=0, ttft_us=None, ttfo_us=None, gap_max_us=None)]))
    assert "no stall of 250 ms or more" in page


def test_the_list() -> None:
    """One line per stream, with its gaps as blocks, the open gap last."""
    listed = row(spark=[0, 600_000, 20_000], gap_open_us=2_000_000)
    page = text(render_list([listed], more=True))
    assert (
        line_of(page, "4bf92f3577b3").split()
        == "4bf92f3577b3 01-02 03:04:05 model-a · shop client complete no 82 400 ms 600 ms 1 ▁▆▁█".split()
    )
    assert "There are more" in page and "legato stream 4bf92f3577b3" in page


def test_markup_in_names_is_text() -> None:
    """Markup and escapes in received names are printed as text."""
    evil: dict[str, Any] = {
        "model": "[red]m[/]\x1b[2J",
        "service": "[b]s",
        "response_id": "[/]",
        "outcome": "[link=x]o",
        "route": "[i]",
        "flags": ["[u]"],
    }
    page = text(render_stream([row(**evil)], 200), 200)
    assert "[red]m[/]" in page and "[link=x]o" in page and "[/]" in page and "\x1b" not in page
    assert "[red]m[/]" in text(render_list([row(spark=[], **evil)]), 200)


def test_the_verdict_is_next_to_the_stall() -> None:
    """Its parts, largest first, without small ones; confidence, engine steps, missing evidence."""
    verdict = {
        "gap_start_us": "1200000", "gap_us": "600000", "parts": {"base": 20_000_000, "scheduling": 480_000_000, "connection": 100_000_000},
        "cause": "scheduling", "confidence": "likely", "step_first": "41", "step_last": "43", "missing": ["server"],
        "evidence": {"server_gap_us": "510000", "unread": "1"}, "excluded": {"host": "the work of its steps explains their duration"},
        "error_us": 1200,
        "culprit_responses": ["chatcmpl-7", "chatcmpl-8\x1b[2J"],
    }  # fmt: skip
    page = text(render_stream([row(verdicts=[verdict])], 200), 200)
    assert "scheduling 480 ms, connection 100 ms · likely · steps 41 to 43 · prompt of chatcmpl-7 and 1 more · without server" in page
    assert "parts: base 20.000 ms, scheduling 480.000 ms, connection 100.000 ms; each within 1.2 ms" in page
    assert "evidence: the server sent the next chunk after 510 ms; data lay unread in the client's socket" in page
    assert "excluded: host: the work of its steps explains their duration" in page
    shown = render_stream([row(verdicts=[{**verdict, "culprit_responses": ["x\x1b[2J\x1b]0;own"]}])], 200)
    assert "\x1b[2J" not in text(shown, 200) and "prompt of x\\u001b[2J" in text(shown, 200)
    assert "why" not in text(render_stream([row(verdicts=[])], 200), 200)
    other = {**verdict, "gap_start_us": "5", "step_first": None, "step_last": None}
    assert "scheduling" not in text(render_stream([row(verdicts=[other])], 200), 200)
