"""Which collectors a node has, by what was set."""

from __future__ import annotations

import pathlib

import pytest

from legato_gpu_agent.metrics import Metrics
from legato_gpu_agent.roster import Roster
from legato_gpu_agent.settings import Settings, SettingsError
from legato_gpu_agent.watch import Basket


def test_where_iterations_are_read_finished_requests_are_too() -> None:
    """No setting is needed for them; each server has both collectors, and a name of its own."""
    environ = {"LEGATO_ITERATIONS": "a=http://127.0.0.1:9,http://127.0.0.1:10", "LEGATO_ENGINE_SCAN": "0"}
    names = [watch.name for watch in Roster(Settings.from_env(environ), Basket(), Metrics()).watches()]
    assert names[-4:] == ["iterations a", "iterations 127.0.0.1:10", "perf metrics a", "perf metrics 127.0.0.1:10"]


def test_requests_without_steps_are_refused(tmp_path: pathlib.Path) -> None:
    """They would wait for steps that nobody tells, and nobody would hear of it."""
    environ = {"LEGATO_ENGINE_PIPE": str(tmp_path / "s"), "LEGATO_ENGINE_SCAN": "0", "LEGATO_REQUEST_FILES": f"prod={tmp_path}"}
    with pytest.raises(SettingsError, match="prod, whose steps nobody tells.*set LEGATO_FORWARD_PASSES=prod="):
        Roster(Settings.from_env(environ), Basket(), Metrics())
    named = Settings.from_env({**environ, "LEGATO_FORWARD_PASSES": "prod=tcp://127.0.0.1:9"})
    names = {watch.name for watch in Roster(named, Basket(), Metrics()).watches()}
    assert {"forward passes prod", "request files prod"} <= names
