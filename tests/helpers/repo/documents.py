"""The commands of a Markdown page: what a reader would type, one by one, and which of them a test can run as they are.

One idea: a page is a script. Its ```sh blocks are its commands; a ```python block whose first line is a comment with a file's name is
that file. What a test cannot run (cloning, installing, a server that stays up) is still checked for what it names.
"""

from __future__ import annotations

import pathlib
import re
import shlex

__all__ = ["commands", "is_runnable", "make_targets", "python_files"]

_BLOCK = r"^```(?:{})\n(.*?)^```"
# These create what the tests have already, or stay up: the tests' own `serve` stands for them.
_NOT_RUN = re.compile(
    r"(git clone|cd|make|(\S*/)?pip3? install|(\S*/)?python3? -m (pip|venv)|source|(\S*/)?legato serve|docker|kill|export)\b"
)


def _blocks(page: pathlib.Path, languages: str) -> list[str]:
    if not page.exists():
        return []
    return re.findall(_BLOCK.format(languages), page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: pathlib.Path) -> list[str]:
    """What the page tells its reader to type, whole commands even where they go over several lines."""
    found: list[str] = []
    for block in _blocks(page, "sh|bash|shell|console"):
        pending = ""
        for line in block.splitlines():
            pending += line.removeprefix("$ ") if not pending else f"\n{line}"
            if not line.endswith("\\") and _is_whole(pending):
                found.append(pending.strip())
                pending = ""
        assert not pending, f"{page.name}: a command has no end: {pending}"
    return [command for command in found if command and not command.startswith("#")]


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def is_runnable(command: str) -> bool:
    """Whether a test can run it as it stands."""
    bare = re.sub(r"^(\w+=\S* )+", "", command)
    return _NOT_RUN.match(bare) is None


def make_targets(command: str) -> list[str]:
    """The targets of a `make` command; nothing for any other."""
    words = shlex.split(command, comments=True)
    return [word for word in words[1:] if "=" not in word and not word.startswith("-")] if words and words[0] == "make" else []


def python_files(page: pathlib.Path) -> dict[str, str]:
    """Files that the page has its reader write: name → text."""
    named = {}
    for block in _blocks(page, "python|py"):
        match = re.match(r"# (\w+\.py)\b", block)
        if match:
            named[match.group(1)] = block
    return named
