"""`python -m legato run PROGRAM …`: runs a program that records its streams, without a change of its code.

The program replaces this process, so its arguments, exit status and signals are those without `legato run`. What differs is PYTHONPATH,
with a folder of Legato in front (`_bootstrap`), and so each Python process that the program starts. If Legato cannot record, the program
runs all the same, after a warning.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from legato._errors import ConfigurationError
from legato._settings import Settings
from legato._version import __version__

__all__ = ["main"]

HELP = """\
usage: python -m legato run [--service-name NAME] [--endpoint URL] PROGRAM [ARGUMENT …]

Run a program and record every stream that it receives from a language model. Its code needs no change.

PROGRAM is one of
  app.py           a script
  -m package       a module
  uvicorn, …       a command, here of this Python's environment, else of PATH

Recorded are openai, anthropic, google-genai, ollama, LiteLLM and everything else that is based on httpx, aiohttp or requests, also in
worker processes. To record what a server itself sends, add legato.asgi.StreamMiddleware or legato.wsgi.StreamMiddleware.

options:
  --service-name NAME   name of the service (OTEL_SERVICE_NAME; default: the program's name)
  --endpoint URL        where the streams go (LEGATO_ENDPOINT; default: http://127.0.0.1:4318, `legato serve` on this machine)
  --help, --version

examples:
  python -m legato run app.py --port 8000
  python -m legato run --service-name shop uvicorn shop.web:app --workers 4
"""
_BOOTSTRAP = pathlib.Path(__file__).parent / "_bootstrap"
_OPTIONS = {"--service-name": "OTEL_SERVICE_NAME", "--endpoint": "LEGATO_ENDPOINT"}
_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
_NO_EXPORTER = "the OTLP exporter is missing; in a checkout of Legato: pip install './sdk[otlp]'"
_NOT_FOUND, _NOT_RUN = 127, 126


class _UsageError(ValueError):
    """The command line is not understood."""


@dataclass
class _Launch:
    """What to run: ``variables`` that options set, and the program with its arguments."""

    variables: dict[str, str] = field(default_factory=dict)
    program: list[str] = field(default_factory=list)


def _parsed(words: Sequence[str]) -> _Launch:
    """Return what to run. Options end with the first word that is none. Raises ``_UsageError``."""
    launch, rest = _Launch(), list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        name, equals, value = rest.pop(0).partition("=")
        if name == "--":
            break
        if name not in _OPTIONS:
            raise _UsageError(f"unknown option {name}: options of Python follow its name, as in `run python {name} app.py`")
        if not equals and not rest:
            raise _UsageError(f"{name} needs a value")
        launch.variables[_OPTIONS[name]] = value if equals else rest.pop(0)
    if not rest:
        raise _UsageError("a program is missing")
    launch.program = rest
    return launch


def _is_script(word: str) -> bool:
    """Whether a word is a file for Python, and not a command. A command of the environment comes before a file of the same name."""
    path = pathlib.Path(word)
    return path.suffix in (".py", ".pyw", ".pyz") or (path.exists() and _command(word) is None)


def _command(word: str) -> str | None:
    """Return the path of a command: of this Python's environment, else of PATH."""
    beside = str(pathlib.Path(sys.executable).parent)
    return shutil.which(word, path=beside) or shutil.which(word)


def _name(program: Sequence[str]) -> str:
    """Return the name of a service that is this program."""
    first, rest = program[0], program[1:]
    if first in ("-m", "-c", "-"):
        return rest[0] if first == "-m" and rest else "python"
    path = pathlib.Path(first)
    if path.name.startswith("python") and rest and (rest[0] == "-m" or rest[0].endswith(".py")):
        return _name(rest)
    return path.stem if path.suffix.startswith(".py") else path.name


def _hindrance(environ: Mapping[str, str]) -> str:
    """Return why Legato cannot record in this environment; an empty string if it can."""
    try:
        Settings.from_env(environ)
        return "" if importlib.util.find_spec(_EXPORTER) else _NO_EXPORTER
    except ConfigurationError as error:
        return str(error)
    except ImportError:
        return _NO_EXPORTER


def _run(launch: _Launch) -> NoReturn:
    """Replace this process by the program."""
    program = launch.program
    environ = {**os.environ, **launch.variables}
    if hindrance := _hindrance(environ):
        print(f"legato run: streams are not recorded: {hindrance}", file=sys.stderr)
    else:
        before = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = os.pathsep.join((str(_BOOTSTRAP), before) if before else (str(_BOOTSTRAP),))
        environ["LEGATO_RUN"] = _name(program)
    if program[0].startswith("-") or _is_script(program[0]):
        program = [sys.executable, *program]
    path = _command(program[0])
    if path is None:
        print(f"legato run: no such command or file: {program[0]}", file=sys.stderr)
        sys.exit(_NOT_FOUND)
    # Python ignores these signals, and an ignored signal is ignored by the program, too.
    for each in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(each, signal.SIG_DFL)
    sys.stderr.flush()
    try:
        # Python finds its environment by the path that it was started with.
        os.execve(path, [path, *program[1:]], environ)
    except OSError as error:
        print(f"legato run: {path}: {error.strerror}", file=sys.stderr)
        sys.exit(_NOT_RUN)


def main() -> None:
    """Read the command line and run the program, or print help."""
    words = sys.argv[1:]
    if words[:1] == ["--version"]:
        print(f"legato {__version__}")
    elif not words or words[0] in ("--help", "-h") or words[:2] in (["run"], ["run", "--help"], ["run", "-h"]):
        print(HELP, end="")
    elif words[0] != "run":
        print(
            f"python -m legato: unknown command {words[0]}; the SDK has `run`, other commands are those of legato-ingest", file=sys.stderr
        )
        sys.exit(2)
    else:
        try:
            launch = _parsed(words[1:])
        except _UsageError as error:
            print(f"legato run: {error}\n`python -m legato run --help` has examples.", file=sys.stderr)
            sys.exit(2)
        _run(launch)


if __name__ == "__main__":
    main()
