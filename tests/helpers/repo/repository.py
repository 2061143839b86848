"""The repository's files and their syntax trees, for the tests of the repository itself."""

from __future__ import annotations

import ast
import pathlib
import subprocess
from collections.abc import Iterator
from functools import cache

__all__ = ["ROOT", "code_lines", "files", "functions", "imports", "modules", "public", "text_files", "tree"]

ROOT = pathlib.Path(__file__).resolve().parents[3]


@cache
def files() -> tuple[pathlib.Path, ...]:
    """Every file of the repository: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(path for name in listed.split("\0") if name and (path := ROOT / name).is_file()))


def text_files() -> Iterator[tuple[pathlib.Path, str]]:
    """Yield each UTF-8 file with its text."""
    for path in files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def modules(*folders: str) -> list[pathlib.Path]:
    """The Python files below these folders of the root."""
    return [path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


@cache
def tree(path: pathlib.Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(path: pathlib.Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a module, also methods and nested ones."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(path: pathlib.Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function that hold code: no docstring, no comment, no blank line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = function.lineno
    if ast.get_docstring(function) is not None:
        start = (function.body[0].end_lineno or start) + 1
    body = lines[start - 1 : function.end_lineno]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in body)


def public(path: pathlib.Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """A module's public functions and classes, and the public methods of these classes."""
    for node in tree(path).body:
        if isinstance(node, _DEFINITIONS) and not node.name.startswith("_") and not _is_overload(node):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (each for each in node.body if isinstance(each, _DEFINITIONS) and not each.name.startswith("_"))


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    return any(ast.unparse(decorator) in ("overload", "typing.overload") for decorator in node.decorator_list)


def imports(path: pathlib.Path, *, at_import_only: bool = False) -> set[str]:
    """The full names of imported modules and members. ``at_import_only`` leaves out imports in functions and under TYPE_CHECKING."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        )
        if not (at_import_only and lazy):
            waiting += ast.iter_child_nodes(node)
    return found
