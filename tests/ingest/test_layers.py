"""The rooms of `legato_ingest` and what each may import."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

from helpers.repo.repository import ROOT, imports, modules, tree

PACKAGE = ROOT / "ingest" / "legato_ingest"
# Modules at the root that every room may import. They import only each other.
LEAVES = frozenset(
    (
        *(
            "address",
            "causes",
            "child_process",
            "columns",
            "definitions",
            "emitters",
            "errors",
            "http_protocol",
            "replies",
            "shares",
            "logs",
            "metrics",
            "objectives",
            "lean",
            "periodic",
            "quoting",
        ),
        *("settings", "stream_histograms", "varint", "visible"),
    )
)
# Room → the other rooms that it may import. Leaves are allowed everywhere.
ALLOWED: dict[str, frozenset[str]] = {
    "timeline": frozenset(),
    "otlp": frozenset(("timeline",)),
    "storage": frozenset(),
    "auth": frozenset(),
    "write": frozenset(("otlp", "storage", "auth")),
    "query": frozenset(("storage", "auth")),
    "attribution/model": frozenset(("timeline",)),
    "attribution/load": frozenset(("attribution/model", "storage", "timeline")),
    "attribution": frozenset(("attribution/load", "attribution/model", "storage", "timeline")),
    "rollups": frozenset(("storage", "timeline")),
    "chunking": frozenset(("storage",)),
    "trace_export": frozenset(("storage",)),
    "jobs": frozenset(("attribution", "chunking", "otlp", "rollups", "storage", "trace_export", "write")),
    "dashboards": frozenset(),
    "reports": frozenset(),
    "web": frozenset(("auth", "dashboards", "query", "reports")),
    "cli": frozenset(("auth", "dashboards", "reports")),
}
# Commands that open a store or start the server import these only when they run: the store's engine takes 200 MB.
LAZY_IN_CLI = frozenset(("jobs", "storage", "serve"))
# Third-party packages of the pure half of the attribution.
PURE = frozenset(("numpy",))


def _room_of(module: str) -> str:
    """The room of a module of the package: ``attribution/model``, ``cli``, or the module's own name for one at the root."""
    names = module.split(".")[1:]
    if not names:
        return ""
    nested = "/".join(names[:2])
    if nested in ALLOWED:
        return nested
    return names[0]


def _module_of(path: pathlib.Path) -> str:
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    return ".".join(relative.parts).removesuffix(".__init__")


def _imported_rooms(path: pathlib.Path, *, at_import_only: bool = False) -> set[str]:
    names = (name for name in imports(path, at_import_only=at_import_only) if name.split(".")[0] == "legato_ingest")
    return {room for name in names if (room := _room_of(name)) in {*ALLOWED, *LEAVES, "serve", "__main__"}} - {_room_of(_module_of(path))}


MODULES = [path for path in modules("ingest") if path.is_relative_to(PACKAGE)]


@pytest.mark.parametrize("room", [*ALLOWED, *sorted(LEAVES)])
def test_rooms_import_what_the_table_allows(room: str) -> None:
    """No room imports a room that it is not allowed to: data goes one way, and reading never writes."""
    allowed = LEAVES if room in LEAVES else LEAVES | ALLOWED[room]
    own = [path for path in MODULES if _room_of(_module_of(path)) == room]
    lazy = LAZY_IN_CLI if room == "cli" else frozenset()
    crossing = {str(path.relative_to(ROOT)): found for path in own if (found := _imported_rooms(path) - allowed - lazy)}
    crossing |= {str(path.relative_to(ROOT)): found for path in own if (found := _imported_rooms(path, at_import_only=True) - allowed)}
    assert not crossing


def test_every_module_is_in_a_room_or_a_leaf() -> None:
    """The root holds the leaves and the two modules that start the program, nothing else."""
    rooms = {_room_of(_module_of(path)) for path in MODULES} - {""}
    assert rooms - set(ALLOWED) - LEAVES == {"serve", "__main__"}


def test_functions_import_nothing_but_in_the_command_line() -> None:
    """An import inside a function hides an arrow; only commands have a reason for it (start-up time)."""
    inner = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if _room_of(_module_of(path)) != "cli"
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not inner


def test_the_attribution_model_is_pure() -> None:
    """`attribution/model` imports the standard library, numpy and leaves: no driver, no I/O of ours."""
    allowed = sys.stdlib_module_names | PURE | {"legato_ingest"}
    own = [path for path in MODULES if _room_of(_module_of(path)) == "attribution/model"]
    assert own
    assert not {name for path in own for name in imports(path) if name.split(".")[0] not in allowed}
    assert not {name for path in own for name in imports(path) if name.startswith(("legato_ingest.settings", "legato_ingest.metrics"))}


def test_every_room_says_what_it_holds() -> None:
    """Each room opens with a docstring: what it holds, what it offers, what it may import."""
    silent = [room for room in ALLOWED if not (ast.get_docstring(tree(PACKAGE / room / "__init__.py")) or "").strip()]
    assert not silent
