"""The id of an engine and the path of the pipe: the plugin and the agent derive the same, without communication."""

from __future__ import annotations

import os
import pathlib
import socket
import sys

import pytest

from legato_gpu_agent.agent.settings import Settings
from legato_gpu_agent.plugin.identity import client_host, engine_id, engine_id_from_url, host_and_port, pipe_path
from legato_gpu_agent.plugin.recorder import StepRecorder

SOMEONE = 4711


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "0.0.0.0", "::", "::1", "[::]", "[::1]"])
def test_this_host_has_one_name(host: str) -> None:
    """For every name of this host in the command line or in the URL."""
    url = f"http://[{host}]:8001/base" if host.startswith(":") else f"http://{host}:8001/base"
    assert client_host(host) == "127.0.0.1"
    assert engine_id({}, ["--host", host, "--port", "8001"]) == engine_id_from_url(url) == "127.0.0.1:8001"


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Addresses by name, instead of a resolver's."""
    known: dict[str, str] = {}

    def resolve(name: str) -> str:
        if name[0].isdecimal():
            return name
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown name")
        return known[name]

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    return known


def test_a_name_in_the_command_line_is_resolved(names: dict[str, str]) -> None:
    """The agent scrapes the server by the address at which it listens, so the ids are the same."""
    names.update({"gpu7": "10.0.0.7", "vm": "127.0.0.1"})
    assert engine_id({}, ["--host", "gpu7"]) == engine_id_from_url("http://10.0.0.7:8000") == "10.0.0.7:8000"
    assert engine_id({}, ["--host", "vm", "--port", "1"]) == "127.0.0.1:1"
    assert engine_id({"LEGATO_ENGINE_ID": "gpu7:8000"}, ["--host", "gpu7"], 1) == "gpu7:8000/1"


@pytest.mark.parametrize("host", ["10.0.0.5", "127.0.0.2", "gpu7", "fd00::5", "::2", "localhost.example"])
def test_another_host_keeps_its_name(host: str) -> None:
    """Unchanged if the name cannot be resolved."""
    url = f"http://[{host}]:8001" if ":" in host else f"http://{host}:8001"
    assert engine_id({}, [f"--host={host}", "--port=8001"]) == engine_id_from_url(url) == f"{host}:8001"


@pytest.mark.parametrize(
    ("url", "place"),
    [("http://gpu7", ("gpu7", 80)), ("https://gpu7/a", ("gpu7", 443)), ("https://[fd00::5]:8000", ("fd00::5", 8000))],
)
def test_a_url_has_a_port(url: str, place: tuple[str, int]) -> None:
    """Its own, or else the default of its scheme."""
    assert host_and_port(url) == place


def test_the_pipe_is_in_a_folder_of_its_user(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting comes first, then the user's runtime folder, then a folder in /tmp. For root it does not depend on the environment."""
    if os.geteuid() == 0:
        os.chown(tmp_path, SOMEONE, SOMEONE)
    user = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert str(pipe_path({"LEGATO_ENGINE_PIPE": "/a/b", "XDG_RUNTIME_DIR": str(tmp_path)})) == "/a/b"
    assert pipe_path({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "legato" / "engine.pipe"
    assert pipe_path({"XDG_RUNTIME_DIR": str(tmp_path / "missing")}) == tmp_path / "missing" / "legato" / "engine.pipe"
    assert str(pipe_path({})) == str(pipe_path({"XDG_RUNTIME_DIR": "relative"})) == f"/tmp/legato-{user}/engine.pipe"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "platform", "linux")
    assert str(pipe_path({})) == str(pipe_path({"XDG_RUNTIME_DIR": "/"})) == "/run/legato-engine/engine.pipe"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert str(pipe_path({})) == "/tmp/legato-0/engine.pipe"


def test_the_runtime_folder_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `su`, which may keep the variable."""
    monkeypatch.setattr(os, "geteuid", lambda: SOMEONE)
    assert str(pipe_path({"XDG_RUNTIME_DIR": "/"})) == f"/tmp/legato-{SOMEONE}/engine.pipe"


@pytest.mark.parametrize("environ", [{}, {"XDG_RUNTIME_DIR": "/tmp"}, {"LEGATO_ENGINE_PIPE": "/a/b"}])
def test_the_plugin_and_the_agent_use_the_same_pipe(environ: dict[str, str]) -> None:
    """In the same environment, for the same user."""
    assert StepRecorder(environ=dict(environ), arguments=[]).writer.path == str(Settings.from_env(environ).pipe)
