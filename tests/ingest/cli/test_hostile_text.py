"""Hostile names in the store: nothing of them steers the terminal of a command, forges a line of its output, or is unseen in it."""

from __future__ import annotations

import ast
import json
import re
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from helpers.builders.batches import received_spans
from helpers.builders.hostile import HOSTILE, put_into_all_texts, unseen
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.incident_past import copy_incident
from helpers.dashboards.running import in_flight, silent
from helpers.repo.repository import ROOT, modules, tree
from helpers.servers.ports import free_port
from helpers.servers.reading import LIMITS, reading
from legato_gpu_agent.agent.otlp_spans import Engine, Step, steps_request
from legato_ingest.cli import main as module
from legato_ingest.cli.main import app
from legato_ingest.errors import LegatoError
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import EmbeddedStore, Store
from legato_ingest.storage.objective_rows import apply

COMMANDS = (
    *("report --since all", "streams --since all", "streams --since all --stalled", "stream {worst}", "live --once", "blame --since all"),
    *("slo --at {end}", "objectives show", "doctor", "doctor --emitters"),
)
"""The commands with a view of the store that have JSON, too."""
WITHOUT_JSON = ("incident --from {begin} --to {end}", "schema status")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
# Of the spinner, which is on standard error only.
MOVEMENT = re.compile(r"\x1b\[[?\d;]*[A-Za-z]|\r")
IN_A_TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
ROWS = {
    "rejected": "SELECT now64(3) AS received_at, 'limit' AS reason, 'the attribute x' AS detail, 'shop' AS service_name",
    "emitter_spans": "SELECT now64(3) AS received_at, 'shop' AS service_name, 'a.scope' AS scope, '1' AS scope_version, "
    "'ignored' AS result, 'no stream' AS reason, 5 AS spans",
    "chunking_changes": "SELECT 'shop' AS service_name, 'm' AS model, 'p' AS provider, 'tokens' AS kind, true AS found, "
    "toDateTime({end}, 'UTC') - 60 AS changed_at, 0.1 AS share_before, 0.9 AS share_after",
}


class Hostile(NamedTuple):
    """The store, and the words that commands name."""

    store: Store
    words: dict[str, str]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """Serve a store with every kind of row, every text of which is hostile."""
    folder, now_s, begin_s = copy_incident(tmp_path_factory.mktemp("hostile") / "built")
    store = EmbeddedStore(folder, {**LIMITS, "max_execution_time": 60})
    try:
        _put_more_kinds(store, now_s)
        apply(store, [Objective(name="default")])
        put_into_all_texts(store)
        worst = "SELECT lower(hex(trace_id)) FROM streams WHERE vantage = 'client' ORDER BY gap_max_us DESC, trace_id LIMIT 1"
        with reading(store) as url, pytest.MonkeyPatch.context() as patch:
            patch.setenv("LEGATO_READ_URL", url)
            patch.setenv("LEGATO_ENDPOINT", f"http://127.0.0.1:{free_port()}")
            patch.setenv("LEGATO_STORE", f"chdb://{folder}")
            times = {"begin": begin_s, "end": now_s}
            words = {name: f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}" for name, at_s in times.items()}
            yield Hostile(store, {**words, "worst": str(store.select(worst)[0][0])})
    finally:
        store.close()


def _put_more_kinds(store: Store, now_s: int) -> None:
    """Rejected and ignored spans, and a change of the chunking."""
    for table, row in ROWS.items():
        names = re.findall(r" AS (\w+)", row)
        store.command(f"INSERT INTO {table} ({', '.join(names)}) {row.format(end=now_s)}")


def _put_running(store: Store) -> None:
    """Streams that run and are silent, and an engine's steps of the last seconds, received with their names."""
    in_flight(store, 5, service=HOSTILE)
    silent(store, 1, 9, service=HOSTILE, attributes={"legato.engine.id": HOSTILE, "gen_ai.request.model": HOSTILE})
    now_ns = time.time_ns()
    steps = [Step(number, now_ns - (9 - number) * SECOND_NS, running=2, kv_used_ppm=9) for number in range(9)]
    body = steps_request(Engine(HOSTILE, now_ns), steps, [])
    store.insert("engine_steps", received_spans(body, tenant="", now_ns=now_ns, limits=Limits()).steps)


def output_of(command: str, hostile: Hostile, **environ: str) -> str:
    """The standard output of a command. What it prints to standard error is checked here."""
    if command.startswith("live"):
        _put_running(hostile.store)
    settings = {"NO_COLOR": None, "FORCE_COLOR": None, "COLUMNS": "200", **environ}
    result = CliRunner().invoke(app, shlex.split(command.format(**hostile.words)), env=settings)
    assert result.exit_code in (0, 1) and not isinstance(result.exception, Exception), result.output
    assert not unseen(MOVEMENT.sub("", result.stderr))
    return result.stdout


@pytest.mark.parametrize("command", [*COMMANDS, *WITHOUT_JSON])
@pytest.mark.parametrize("environ", [pytest.param({}, marks=pytest.mark.long), IN_A_TERMINAL], ids=["piped", "terminal"])
def test_no_view_has_a_character_that_is_not_seen(hostile: Hostile, command: str, environ: dict[str, str]) -> None:
    """Line breaks and the terminal's own colours are the only ones; a hostile text is shown in one line, with escapes."""
    found = COLOUR.sub("", output_of(command, hostile, **environ))
    assert not unseen(found)
    if command != "schema status":
        # Folded in a narrow column, so without the line breaks.
        assert "\\u001b" in re.sub(r"\s+", "", found) and "[red]" in re.sub(r"\s+|\\(?=\[)", "", found).replace("\\]", "]")


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_the_data_in_ascii(hostile: Hostile, command: str) -> None:
    """In one line, with every character as JSON's escapes, and unchanged when it is read."""
    found = output_of(f"{command} --json", hostile)
    assert not unseen(found) and found.isascii() and found.count("\n") == 1
    assert json.dumps(HOSTILE)[1:-1] in found


def test_an_error_with_the_text_of_a_server_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the text holds."""

    def fails() -> None:
        raise LegatoError(f"refused: {HOSTILE}\nlegato: all is well")

    monkeypatch.setattr(module, "app", fails)
    with pytest.raises(SystemExit):
        module.main()
    printed = capsys.readouterr().err
    assert not unseen(printed) and printed.count("\n") == 1 and "\\u202e" in printed


def test_commands_print_in_one_module_only() -> None:
    """`layout`, which escapes. A console of standard error shows only the commands' own texts."""
    found = []
    for path in (each for each in modules("ingest") if "cli" in each.relative_to(ROOT).parts and each.name != "layout.py"):
        for call in (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            if name in ("print", "typer.echo", "typer.secho", "sys.stdout.write") or (
                name == "Console" and "stderr=True" not in ast.unparse(call)
            ):
                found.append(f"{path.relative_to(ROOT)}:{call.lineno}: {name}")
    assert not found
