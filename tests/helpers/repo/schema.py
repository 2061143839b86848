"""The numbered SQL files of schema/, for tests: all files, and those that create an object by its name."""

from __future__ import annotations

import pathlib
import re

__all__ = ["FILES", "MADE", "altered"]

FILES = sorted((pathlib.Path(__file__).resolve().parents[3] / "schema").glob("*.sql"))


def altered(file: pathlib.Path) -> str:
    """The table that a file alters; empty if the file creates an object."""
    match = re.search(r"^ALTER TABLE (\w+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else ""


MADE = {file.stem.split("_", 1)[1]: file for file in FILES if not altered(file)}
