"""`legato` commands that read, run in this process against a read endpoint."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from legato_ingest.cli.main import app

__all__ = ["read_json", "read_text"]


def read_text(url: str, *words: str) -> str:
    """The text output of a command that succeeds, 140 columns wide."""
    result = CliRunner().invoke(app, words, env={"LEGATO_READ_URL": url, "COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    return result.stdout


def read_json(url: str, *words: str) -> Any:
    """The JSON output of a command."""
    return json.loads(read_text(url, *words, "--json"))
