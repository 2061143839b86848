"""Tests of the command `legato` itself: its subcommands and their earlier names."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from legato_ingest.cli.main import app, main


def run(*words: str) -> str:
    """The output of a command that succeeds."""
    result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.mark.parametrize(("earlier", "name"), [("move", "copy"), ("attribute", "reattribute")])
def test_earlier_names_of_commands_still_work(earlier: str, name: str) -> None:
    """They are the same command, and the list of commands has only the present name."""
    listed = [line.split()[1] for line in CliRunner().invoke(app, ["--help"]).stdout.splitlines() if line.startswith("│ ")]
    assert name in listed and earlier not in listed
    assert run(earlier, "--help").partition("--")[2] == run(name, "--help").partition("--")[2]


def test_an_error_of_legato_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit status 1 and without a traceback."""
    monkeypatch.setattr("sys.argv", ["/usr/bin/legato", "copy", "--to", "chdb:///x"])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 1
    assert capsys.readouterr().err.startswith("legato: --to must be a ClickHouse server: clickhouse://")


def test_the_module_signs_errors_as_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m legato_ingest` has the path of its file as its name."""
    monkeypatch.setattr("sys.argv", ["/site-packages/legato_ingest/__main__.py", "copy", "--to", "chdb:///x"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.startswith("legato: --to must be")


def test_a_full_disk_is_one_line() -> None:
    """Output that finds no space ends the command with one line and exit status 1, without a traceback, also at the interpreter's end."""
    code = "import sys; sys.argv[0] = 'legato'; from legato_ingest.cli.main import main; main()"
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", code, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "legato: cannot write: No space left on device\n")
