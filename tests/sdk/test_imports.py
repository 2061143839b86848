"""Packages that are imported later are noticed once their code has run, beside other tools that do the same, and from zip files."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import pathlib
import sys
import zipfile
from collections.abc import Iterator

import pytest
import wrapt

from legato._imports import AfterImport, is_imported, is_installed

NAMES = ("legato_outer", "legato_inner", "legato_broken")
# The outer package imports the inner one, and looks at itself while its code runs.
SOURCES = {
    "legato_inner.py": "done = True",
    "legato_outer/__init__.py": "import sys, legato_inner\nfrom legato_outer import part\nfrom legato._imports import is_imported\n"
    "early = is_imported('legato_outer')\ndone = True",
    "legato_outer/part.py": "done = True",
    "legato_broken.py": "1 / 0",
}


@pytest.fixture(params=["files", "zip"])
def noticed(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bool]]]:
    """The names that were noticed, with whether the package's code had run to its end."""
    if request.param == "zip":
        place = tmp_path / "packages.zip"
        with zipfile.ZipFile(place, "w") as packed:
            for name, source in SOURCES.items():
                packed.writestr(name, source)
    else:
        place = tmp_path
        for name, source in SOURCES.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))
    found: list[tuple[str, bool]] = []
    finder = AfterImport(NAMES, lambda name: found.append((name, hasattr(sys.modules[name], "done"))))
    finder.install()
    finder.install()
    yield found
    finder.remove()
    finder.remove()
    for name in [name for name in sys.modules if name.split(".")[0] in NAMES]:
        del sys.modules[name]


def test_a_package_and_what_it_imports(noticed: list[tuple[str, bool]]) -> None:
    """Each once, the inner one first; looking for it is not importing it, and the loader is the real one."""
    assert is_installed("legato_outer") and not is_installed("legato_absent") and not is_imported("legato_outer")
    assert importlib.util.find_spec("legato_outer") is not None and noticed == []
    outer = importlib.import_module("legato_outer")
    importlib.import_module("legato_outer")
    assert noticed == [("legato_inner", True), ("legato_outer", True)]
    assert is_imported("legato_outer") and outer.early is False
    assert type(outer.__loader__).__module__ in ("_frozen_importlib_external", "zipimport")


def test_a_package_that_fails_is_not_noticed(noticed: list[tuple[str, bool]]) -> None:
    """Its exception is that of its code."""
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("legato_broken")
    assert noticed == []


def test_beside_other_tools(noticed: list[tuple[str, bool]]) -> None:
    """One of the same kind, and one that asks all finders again from inside its own search."""
    others: list[str] = []
    wrapt.register_post_import_hook(lambda module: others.append(module.__name__), "legato_outer")
    second = AfterImport(("legato_outer",), others.append)
    second.install()
    try:
        importlib.import_module("legato_outer")
    finally:
        second.remove()
    assert sorted(others) == ["legato_outer"] * 2 and noticed == [("legato_inner", True), ("legato_outer", True)]
