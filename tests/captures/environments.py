"""Environments of the emitters: a virtual environment, an npm folder or a Go module, made once and kept in a cache folder.

Scripts are copied beside their packages: the paths in recorded stack traces are those of the cache folder. `uv` is used if it is in PATH,
otherwise `venv` and `pip`. Registries are the ones that the machine's clients are configured for.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

from captures.catalogue import Emitter

SCRIPTS = pathlib.Path(__file__).parent / "emitters"
_OF_INTEREST = re.compile(r"opentelemetry-(api|sdk|util-genai|semantic-conventions-ai|exporter-otlp-[a-z-]+)|@opentelemetry/sdk-trace-base")


@dataclass(frozen=True)
class Environment:
    """How to run the script, and the versions that it runs with."""

    program: tuple[str, ...]
    script: pathlib.Path
    versions: dict[str, str]


def _name(requirement: str) -> str:
    """The package's name in a requirement such as "a[b]==1", "@a/b@1" or "a@1"."""
    return re.split(r"[\[=<>~]|(?<=.)@", requirement)[0]


def _requirements(emitter: Emitter) -> list[str]:
    return [*emitter.packages, *emitter.needs]


def _is_complete(folder: pathlib.Path, requirements: list[str]) -> bool:
    """Whether the folder was made for these requirements, and not left half made."""
    marker = folder / "complete"
    return marker.exists() and marker.read_text(encoding="utf-8").split("\n") == requirements


def _complete(folder: pathlib.Path, requirements: list[str]) -> None:
    (folder / "complete").write_text("\n".join(requirements), encoding="utf-8")


def _wanted(emitter: Emitter, installed: dict[str, str]) -> dict[str, str]:
    names = {_name(each) for each in (*emitter.packages, *emitter.needs)}
    return {name: version for name, version in sorted(installed.items()) if name in names or _OF_INTEREST.fullmatch(name)}


def _python(emitter: Emitter, folder: pathlib.Path) -> Environment:
    python = folder / "bin" / "python"
    requirements = _requirements(emitter)
    if not _is_complete(folder, requirements):
        uv = shutil.which("uv")
        if uv:
            subprocess.run([uv, "venv", "--clear", "--quiet", "--python", sys.executable, folder], check=True)
            subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *requirements], check=True)
        else:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        _complete(folder, requirements)
    code = "import importlib.metadata as m, json; print(json.dumps({d.name.lower(): d.version for d in m.distributions()}))"
    listed = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, folder)
    return Environment((str(python),), folder / emitter.script, _wanted(emitter, json.loads(listed.stdout)))


def _javascript(emitter: Emitter, folder: pathlib.Path) -> Environment:
    """The script is copied beside `node_modules`, where Node looks for packages."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = _requirements(emitter)
    if not _is_complete(folder, requirements):
        (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
        npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        subprocess.run([*npm, *requirements], cwd=folder, check=True)
        _complete(folder, requirements)
    for script in SCRIPTS.glob("*.mjs"):
        shutil.copy(script, folder)
    manifests = [*folder.glob("node_modules/*/package.json"), *folder.glob("node_modules/@*/*/package.json")]
    contents = [json.loads(each.read_text(encoding="utf-8")) for each in manifests]
    installed = {each["name"]: each["version"] for each in contents if "version" in each}
    return Environment(("node",), folder / emitter.script, _wanted(emitter, installed))


def _go(emitter: Emitter, folder: pathlib.Path) -> Environment:
    """The program is built in a new module; `packages` are Go modules."""
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / "emitter"
    requirements = _requirements(emitter)
    if not _is_complete(folder, requirements):
        shutil.copy(SCRIPTS / emitter.script, folder / "main.go")
        (folder / "go.mod").unlink(missing_ok=True)
        subprocess.run(["go", "mod", "init", "capture"], cwd=folder, check=True)
        subprocess.run(["go", "get", *requirements], cwd=folder, check=True)
        subprocess.run(["go", "mod", "tidy"], cwd=folder, check=True)
        _complete(folder, requirements)
    shutil.copy(SCRIPTS / emitter.script, folder / "main.go")
    subprocess.run(["go", "build", "-o", binary, "."], cwd=folder, check=True)
    listed = subprocess.run(["go", "list", "-m", "all"], cwd=folder, check=True, capture_output=True, text=True)
    installed = dict(line.split()[:2] for line in listed.stdout.splitlines() if len(line.split()) > 1)
    return Environment((), binary, _wanted(emitter, installed))


def made(emitter: Emitter, folder: pathlib.Path) -> Environment:
    """Return the emitter's environment, made in `folder` if it is not there yet."""
    return {"python": _python, "javascript": _javascript, "go": _go}[emitter.language](emitter, folder)
