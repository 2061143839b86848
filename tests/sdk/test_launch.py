"""`python -m legato run` and `legato run`: programs without a line of Legato are recorded, and run as with plain Python."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import site
import subprocess
import sys
import venv
from collections.abc import Iterator

import pytest

import legato
from helpers.builders.completions import completions_server
from helpers.servers.receiver import Receiver, receiver
from legato.__main__ import HELP
from legato_ingest.cli import launch
from legato_ingest.errors import SettingsError

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LEGATO_", "PYTEST_"))}
LEGATO = (sys.executable, "-m", "legato", "run")
# `openai` is imported first by the child, which has the environment of its parent. The status is the child's.
APPLICATION = """
import json, multiprocessing, sys

def child(url):
    import openai
    with openai.OpenAI(base_url=url, api_key="none") as client:
        list(client.chat.completions.create(model="child", messages=[], stream=True))

if __name__ == "__main__":
    print(json.dumps([sys.argv[1:], __name__, [each for each in sys.path if "legato" in each], "legato" in sys.modules]))
    started = multiprocessing.get_context("spawn").Process(target=child, args=sys.argv[1:])
    started.start()
    started.join()
    import httpx
    with httpx.stream("POST", sys.argv[1] + "/chat/completions", json={"model": "parent", "stream": True}) as response:
        print(response.read().count(b"data:") > 2)
    sys.exit(started.exitcode or 7)
"""


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[str, Receiver]]:
    """A server of completions, and a receiver of OTLP."""
    with completions_server() as server, receiver() as endpoint:
        yield server, endpoint


def run(folder: pathlib.Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(words, cwd=folder, env={**CLEAN, **environ}, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_and_its_children_are_recorded(endpoints: tuple[str, Receiver], tmp_path: pathlib.Path) -> None:
    """Libraries that are imported later, also in a spawned process. Arguments, path, status and output are those of the program."""
    server, endpoint = endpoints
    (tmp_path / "application.py").write_text(APPLICATION, encoding="utf-8")
    endpoint.received.clear()
    plain = run(tmp_path, sys.executable, "application.py", server)
    done = run(tmp_path, *LEGATO, "--endpoint", endpoint.url, "application.py", server)
    assert (done.returncode, done.stdout, done.stderr) == (7, plain.stdout, "") and plain.returncode == 7, done.stderr
    assert sorted((each.service, each.model) for each in endpoint.streams) == [("application", "child"), ("application", "parent")]


SMALL = """
import sys, httpx, legato
if sys.argv[2:]: legato.configure(service_name=sys.argv[2])
with httpx.stream("POST", sys.argv[1] + "/chat/completions", json={"model": "m", "stream": True}) as response:
    response.read()
"""


@pytest.mark.parametrize(
    ("words", "service"),
    [
        ((*LEGATO, "--service-name=shop", "python", "-m", "small"), "shop"),
        ((sys.executable, "-m", "legato_ingest", "run", "small.py"), "small"),
        ((sys.executable, "-m", "legato_ingest", "run", "--service-name", "shop", "small.py"), "own"),
    ],
)
def test_the_name_of_the_service(endpoints: tuple[str, Receiver], tmp_path: pathlib.Path, words: tuple[str, ...], service: str) -> None:
    """The option's, else the program's; the program's `configure` comes before both. `legato run` of the ingest takes the same options."""
    server, endpoint = endpoints
    (tmp_path / "small.py").write_text(SMALL, encoding="utf-8")
    endpoint.received.clear()
    done = run(tmp_path, *words, server, *(["own"] if service == "own" else []), LEGATO_ENDPOINT=endpoint.url)
    assert (done.returncode, done.stderr) == (0, "") and [each.service for each in endpoint.streams] == [service]


def test_the_sitecustomize_of_the_user_runs_and_tracebacks_and_signals_are_the_programs(tmp_path: pathlib.Path) -> None:
    """The same output as with plain Python, and the same end."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "sitecustomize.py").write_text("import builtins; builtins.mark = __file__", encoding="utf-8")
    (tmp_path / "fails.py").write_text("print(mark, len(__import__('sys').path)); {}['key']", encoding="utf-8")
    (tmp_path / "dies.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", encoding="utf-8")
    path = os.pathsep.join((str(tmp_path / "user"), CLEAN.get("PYTHONPATH", "")))
    plain, done = (run(tmp_path, *start, "fails.py", PYTHONPATH=path) for start in ((sys.executable,), LEGATO))
    assert (done.returncode, done.stdout, done.stderr) == (1, plain.stdout, plain.stderr) and str(tmp_path / "user") in done.stdout
    assert run(tmp_path, *LEGATO, "dies.py").returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("nosuch",), 127, "no such command or file: nosuch"),
        (("-u", "app.py"), 2, "as in `run python -u app.py`"),
        (("--endpoint",), 2, "--endpoint needs a value"),
        (("--endpoint", "shop", "-c", "print(7)"), 0, "streams are not recorded: LEGATO_ENDPOINT has value 'shop'"),
        ((), 0, ""),
    ],
)
def test_what_is_wrong_is_said_and_the_program_runs_if_it_can(
    words: tuple[str, ...], status: int, line: str, tmp_path: pathlib.Path
) -> None:
    """One line, and the status that a shell has for it. Without a program there is help."""
    done = run(tmp_path, *LEGATO, *words)
    assert done.returncode == status and line in done.stderr, (done.stdout, done.stderr)
    assert done.stdout == ("7\n" if "-c" in words else "" if words else HELP)


def test_a_client_that_a_pth_file_imports_is_recorded(tmp_path: pathlib.Path) -> None:
    """Python runs the lines of `.pth` files before `sitecustomize`."""
    venv.create(tmp_path / "env", symlinks=True)
    (folder,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # The file imports the client only in the program, not in `legato run`.
    line = "import os; 'LEGATO_RUN' in os.environ and __import__('httpx')"
    lines = (str(pathlib.Path(legato.__file__).parents[1]), *site.getsitepackages(), line)
    (folder / "tool.pth").write_text("\n".join(lines), encoding="utf-8")
    words = ("-c", "import httpx, sys; print(hasattr(httpx.Client.send, '__wrapped__'), [each for each in sys.path if 'boot' in each])")
    done = run(tmp_path, str(tmp_path / "env" / "bin" / "python"), *LEGATO[1:], *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True []\n", "")


def test_a_broken_sdk_does_not_break_the_program(tmp_path: pathlib.Path) -> None:
    """The fault is one line, in the process that imports a client library; a process that imports none says nothing."""
    shutil.copytree(pathlib.Path(__file__).parents[2] / "sdk" / "legato" / "_bootstrap", tmp_path / "legato" / "_bootstrap")
    (tmp_path / "legato" / "__init__.py").touch()
    shutil.copy(pathlib.Path(__file__).parents[2] / "sdk" / "legato" / "_imports.py", tmp_path / "legato" / "_imports.py")
    path = os.pathsep.join((str(tmp_path / "legato" / "_bootstrap"), str(tmp_path)))
    done = run(tmp_path, sys.executable, "-c", "import requests, httpx; print(7)", PYTHONPATH=path)
    assert done.stdout == "7\n" and done.stderr.count("\n") == 1 and "are not recorded" in done.stderr
    assert run(tmp_path, sys.executable, "-c", "print(7)", PYTHONPATH=path).stderr == ""


def test_an_environment_without_the_sdk_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install there."""
    monkeypatch.setattr(launch, "_PROBE", "import sys; sys.exit(1)")
    with pytest.raises(SettingsError, match=r"no SDK of Legato in the environment of .*pip install './sdk\[otlp\]'"):
        launch.python_with_sdk()


def test_the_help_names_the_package_to_install(tmp_path: pathlib.Path) -> None:
    """With the extra in brackets, which a formatter of help could take for markup."""
    done = run(tmp_path, sys.executable, "-m", "legato_ingest", "run", "--help")
    assert done.returncode == 0 and "pip install './sdk[otlp]'" in " ".join(done.stdout.split())
