"""Extract the commands and files of a Markdown page, so that tests can run the documentation as a script.

The ```sh blocks are the page's commands. A ```python block that starts with a comment with a file name is that file. Commands that a
test cannot run (cloning, installing, a server that stays up) are recognized, so that tests can still check the names in them.
"""

from __future__ import annotations

import pathlib
import re
import shlex

__all__ = ["commands", "is_runnable", "make_targets", "python_files"]

_BLOCK = r"^```(?:{})\n(.*?)^```"
# These commands install what the tests have already, or do not end; the tests start their own `legato serve`.
_NOT_RUN = re.compile(
    r"(git clone|cd|make|(\S*/)?pip3? install|(\S*/)?python3? -m (pip|venv)|source|(\S*/)?legato serve|docker|kill|export)\b"
)


def _blocks(page: pathlib.Path, languages: str) -> list[str]:
    if not page.exists():
        return []
    return re.findall(_BLOCK.format(languages), page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: pathlib.Path) -> list[str]:
    """The page's shell commands in order. A command that continues over several lines is one entry."""
    found: list[str] = []
    for block in _blocks(page, "sh|bash|shell|console"):
        pending = ""
        for line in block.splitlines():
            pending += line.removeprefix("$ ") if not pending else f"\n{line}"
            if not line.endswith("\\") and _is_complete(pending):
                found.append(pending.strip())
                pending = ""
        assert not pending, f"{page.name}: a command is incomplete: {pending}"
    return [command for command in found if command and not command.startswith("#")]


def _is_complete(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def is_runnable(command: str) -> bool:
    """Whether a test can run the command unchanged."""
    bare = re.sub(r"^(\w+=\S* )+", "", command)
    return _NOT_RUN.match(bare) is None


def make_targets(command: str) -> list[str]:
    """The targets of a `make` command; empty for any other command."""
    words = shlex.split(command, comments=True)
    return [word for word in words[1:] if "=" not in word and not word.startswith("-")] if words and words[0] == "make" else []


def python_files(page: pathlib.Path) -> dict[str, str]:
    """The Python files that the page defines: name → text."""
    named = {}
    for block in _blocks(page, "python|py"):
        match = re.match(r"# (\w+\.py)\b", block)
        if match:
            named[match.group(1)] = block
    return named
