"""Tests of all commands together: no command creates a store, and every view fits its terminal and needs no colour."""

from __future__ import annotations

import pathlib
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

from demo.__main__ import app as demo_app
from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.incident_past import copy_incident
from helpers.dashboards.running import in_flight, silent
from helpers.servers.ports import free_port
from helpers.servers.reading import LIMITS, reading, stream, streams_in
from legato_gpu_agent.agent.otlp_spans import Engine, Step, steps_request
from legato_ingest.cli.client import Reader
from legato_ingest.cli.main import app, main
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import EmbeddedStore, Store

# Every command that reads or maintains, with arguments that it accepts.
COMMANDS = {
    "report": (),
    "streams": (),
    "stream": ("4bf92f3577b3",),
    "live": ("--once",),
    "blame": (),
    "incident": ("--from", "00:00"),
    "slo": (),
    "objectives show": (),
    "objectives apply": (),
    "doctor": (),
    "schema status": (),
    "reattribute": ("--since", "1h"),
    "rollup": ("--since", "1h"),
    "backup": (),
    "copy": ("--to", "clickhouse://u@127.0.0.1:9/d"),
}
# Commands that create a store, and commands that need none.
OTHERS = {"serve", "run", "restore", "schema apply", "dashboards push", "dashboards check", "token add", "token list", "token remove"}
# The commands with a view, and titles that are shown at every width. {…} is filled from the store.
VIEWS = {
    ("report", "--since", "all"): ("service · vantage", "good at", "worst", "TTFT", "excess over it"),
    ("streams", "--since", "all", "--stalled"): ("stream", "service", "outcome", "good", "worst gap"),
    ("stream", "{worst}"): ("vantage", "start (UTC)", "gap p50 / p99 / worst", "at", "for", "why"),
    ("live", "--once"): ("service", "in flight", "stalled", "silent for", "cause so far", "KV cache", "last step"),
    ("blame", "--since", "all"): ("cause", "time charged", "when (UTC)", "event", "beyond healthy"),
    ("incident", "--from", "{begin}", "--to", "{end}"): ("service · vantage", "bad streams", "since (UTC)", "cause", "longest gap"),
    ("slo", "--at", "{end}"): ("budget", "service · vantage", "burn rate", "bad streams", "state"),
    ("objectives", "show"): ("objective", "streams of", "target", "gap limit", "budget left"),
    ("doctor",): ("OTLP endpoint", "disk"),
}
LONG = "a-service-with-a-name-that-is-much-longer-than-any-column-can-be"
COLOURED = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
NUMBER = re.compile(r"\d[\d,.:-]*(?: (?:µs|ms|s|min|%|kB|B|GiB)(?!\w))?")
SEGMENT = re.compile(r"\x1b\[([\d;]*)m([^\x1b]*)")
COLOUR = re.compile(r"(?:^|;)(?:3[0-8]|9[0-7])(?:;|$)")
MARKS = re.compile(r"[─╌▁▂▃▄▅▆▇█]+")


def commands_of(group: typer.Typer, prefix: str = "") -> set[str]:
    """The names of all commands that are not hidden."""
    own = {prefix + (each.name or each.callback.__name__) for each in group.registered_commands if not each.hidden and each.callback}
    for each in group.registered_groups:
        assert each.typer_instance is not None
        own |= commands_of(each.typer_instance, f"{each.typer_instance.info.name} ")
    return own


@pytest.mark.parametrize("program", [app, demo_app], ids=["legato", "demo"])
def test_help_shows_the_whole_text_of_each_option(program: typer.Typer) -> None:
    """Also what a library could take for markup, such as a default in brackets."""
    todo: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(program))]
    while todo:
        words, command = todo.pop()
        todo += [((*words, name), each) for name, each in getattr(command, "commands", {}).items() if not each.hidden]
        page = re.sub(r"[│\s]", "", output(program, [*words, "--help"], COLUMNS="100"))
        for option in command.params:
            text = getattr(option, "help", None)
            assert not text or re.sub(r"\s", "", text) in page, (words, text)


def test_every_command_is_in_one_of_these_lists() -> None:
    """A new command has to be added here."""
    assert commands_of(app) == set(COMMANDS) | OTHERS


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kind", ["absent", "empty", "default"])
def test_no_command_creates_a_store(
    name: str, kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where neither a store nor a server is: exit status 1, one line of error, and no file. An empty folder stays empty."""
    monkeypatch.setattr("sys.argv", ["legato", *name.split(), *COMMANDS[name]])
    monkeypatch.delenv("LEGATO_STORE", raising=False)
    for variable in ("LEGATO_READ_URL", "LEGATO_ENDPOINT"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if kind != "default":
        monkeypatch.setenv("LEGATO_STORE", f"chdb://{tmp_path}/store")
    if kind == "empty":
        (tmp_path / "store").mkdir()
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 1
    if name == "doctor":
        assert "2 faults" in printed.out and printed.err == ""
    else:
        assert printed.err.startswith("legato: no ") and printed.err.count("\n") == 1 and printed.out == ""
    assert [path.name for path in tmp_path.rglob("*")] == (["store"] if kind == "empty" else [])


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, ...], list[str]]]:
    """The arguments of each view: the incident of the demo, streams that run now, and a long name. Each query is sent once."""
    folder, now_s, begin_s = copy_incident(tmp_path_factory.mktemp("views") / "built")
    store, answers = EmbeddedStore(folder, {**LIMITS, "max_execution_time": 60}), dict[str, Any]()
    asked = Reader.rows

    def rows(reader: Reader, sql: str, parameters: Any = None) -> Any:
        if sql.endswith(" AS ms"):
            return [{"ms": time.time_ns() // 1_000_000}]
        key = f"{sql} {parameters}"
        if key not in answers:
            answers[key] = asked(reader, sql, parameters)
        return answers[key]

    try:
        names = {"begin": f"{datetime.fromtimestamp(begin_s, UTC):%Y-%m-%dT%H:%M:%S}"}
        names["end"] = f"{datetime.fromtimestamp(now_s, UTC):%Y-%m-%dT%H:%M:%S}"
        worst = "SELECT lower(hex(trace_id)) FROM streams WHERE vantage = 'client' ORDER BY gap_max_us DESC, trace_id LIMIT 1"
        names["worst"] = str(store.select(worst)[0][0])
        with reading(store) as url, pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reader, "rows", rows)
            patch.setenv("LEGATO_READ_URL", url)
            patch.setenv("LEGATO_ENDPOINT", f"http://127.0.0.1:{free_port()}")
            # What runs now is shown for some seconds: on a busy machine, the tests of the other views take longer.
            put_running(store)
            shown(["live", "--once"])
            yield {words: [word.format(**names) for word in words] for words in VIEWS}
    finally:
        store.close()


def put_running(store: Store) -> None:
    """Streams in flight, two of them silent, an engine's steps of the last seconds, and a stalled stream of a service with a long name."""
    in_flight(store, 1_234)
    in_flight(store, 5, service=LONG, process="b")
    silent(store, 1, 9)
    silent(store, 2, 3, service=LONG)
    now_ns = time.time_ns()
    steps = [Step(number, now_ns - (9 - number) * SECOND_NS, running=256, waiting=1_024, kv_used_ppm=990_000) for number in range(9)]
    body = steps_request(Engine("engine-with-a-long-name.example:8000", now_ns), steps, [])
    batch = received_spans(body, tenant="", now_ns=now_ns, limits=Limits())
    store.insert("engine_steps", batch.steps)
    streams_in(store, [stream((20.0,) * 9 + (700.0,), attributes={"gen_ai.request.model": LONG})], LONG)


def output(program: typer.Typer, words: Sequence[str], /, **environ: str) -> str:
    """The standard output of a command of this program."""
    result = CliRunner().invoke(program, words, env={"NO_COLOR": None, "FORCE_COLOR": None, **environ})
    assert result.exit_code == (words == ["doctor"]), result.output
    return result.stdout


def shown(words: list[str], **environ: str) -> str:
    """The standard output of a command of `legato`."""
    return output(app, words, **environ)


def numbers(page: str) -> set[str]:
    """The numbers of a page with their units. The scale of a drawing depends on its width."""
    lines = [line for line in page.splitlines() if not line.startswith("one mark: ")]
    return {found.rstrip(",.:-") for line in lines for found in NUMBER.findall(line)}


@pytest.mark.parametrize("words", VIEWS, ids=lambda words: words[0])
def test_every_view_fits_its_terminal(views: dict[tuple[str, ...], list[str]], words: tuple[str, ...]) -> None:
    """No line is longer than the terminal, no number is cut or folded, and titles are whole; piped output fits COLUMNS."""
    environ = {**COLOURED, "NO_COLOR": "1"} if words[0] == "incident" else {}
    wide = shown(views[words], **environ, COLUMNS="400")
    # In the width of a phone, an id in a sentence is folded, and titles are in several lines.
    for width in (80, 100, 160) if words[0] == "stream" else (40, 80, 100, 160):
        page = shown(views[words], **environ, COLUMNS=str(width))
        assert max(map(cell_len, page.splitlines())) <= width
        assert "…" not in page and numbers(page) <= numbers(wide), numbers(page) - numbers(wide)
        assert width == 40 or all(title in page for title in VIEWS[words]), page


@pytest.mark.parametrize("words", VIEWS, ids=lambda words: words[0])
def test_no_view_needs_colour(views: dict[tuple[str, ...], list[str]], words: tuple[str, ...]) -> None:
    """Whatever is coloured says the same in a word, or is a mark that the page explains. Without colours there are no escape codes."""
    plain = shown(views[words], **COLOURED, NO_COLOR="1", COLUMNS="160")
    assert "\x1b" not in plain + shown(views[words], COLUMNS="160") + shown(views[words], NO_COLOR="1")
    coloured = shown(views[words], **COLOURED, COLUMNS="160")
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    for codes, text in SEGMENT.findall(coloured):
        if COLOUR.search(codes) and text.strip():
            marks = MARKS.fullmatch(text.strip())
            assert ("stall" in plain or "open gap" in plain) if marks else re.search(r"[a-z]{2,}", NUMBER.sub("", text)), (codes, text)
