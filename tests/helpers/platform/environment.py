"""A virtual environment with nothing but a wheel and the distributions that it declares, made without network access.

The distributions are those of the environment that runs the tests: each of their files is linked. `pip` then installs the wheel and refuses
a dependency that is declared but missing; a package that is imported but not declared is not there. No file of a checkout is visible.
"""

from __future__ import annotations

import email
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["Environment", "environment"]


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: pathlib.Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run one of its commands with these variables and no others, in an empty folder."""
        program, *arguments = command
        where = self.folder / "cwd"
        where.mkdir(exist_ok=True)
        line = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(line, cwd=where, env=environ, capture_output=True, text=True, timeout=120, check=False)


def environment(folder: pathlib.Path, wheel: pathlib.Path, *extras: str) -> Environment:
    """Make an environment in ``folder`` with the wheel and its dependencies. Fails if pip cannot install the wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for each in _needed(_requirements_of(wheel), extras):
        _link(each, site)
    made = Environment(folder)
    asked = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        made.python,
        "install",
        "--quiet",
        "--no-index",
        "--disable-pip-version-check",
        asked,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return made


def _requirements_of(wheel: pathlib.Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])


def _needed(requirements: Iterable[str], extras: Iterable[str]) -> list[Distribution]:
    """The installed distributions that these requirements name, and in turn theirs."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(text, ("", *extras)) for text in requirements]
    while waiting:
        text, wanted = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in wanted):
            continue
        name = canonicalize_name(requirement.name)
        found.setdefault(name, distribution(name))
        for extra in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            waiting += [(each, (extra,)) for each in found[name].requires or ()]
    return [*found.values(), *_sharing(found)]


def _sharing(found: Mapping[str, Distribution]) -> Iterator[Distribution]:
    """Other distributions that wrote into files of these: urllib3-future, if it is installed, replaces the files of urllib3."""
    owned = {str(file) for each in found.values() for file in each.files or ()}
    for each in distributions():
        files = (str(file) for file in each.files or () if file.suffix == ".pyc")
        if canonicalize_name(each.name) not in found and not owned.isdisjoint(files):
            yield each


def _link(found: Distribution, site: pathlib.Path) -> None:
    """Link each file of a distribution, except commands, which are outside of its folder."""
    for file in found.files or ():
        if ".." in file.parts:
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        source = pathlib.Path(str(found.locate_file(file)))
        if source.is_file() and not target.exists():
            target.symlink_to(source)
