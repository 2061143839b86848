"""The rooms of the agent: which room may import which, that the plugin needs no package, and that every module has a test file."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

from helpers.repo.repository import ROOT, functions, imports, modules, tree

PACKAGE = "legato_gpu_agent"
DISTRIBUTION = ROOT / "gpu_agent"
SOURCE = DISTRIBUTION / PACKAGE

ALLOWED: dict[str, set[str]] = {
    "plugin": set(),
    "engines": set(),
    "collectors": {"engines", "plugin.identity", "plugin.model", "plugin.protocol"},
    "agent": {"collectors", "engines", "plugin.identity", "plugin.model", "plugin.pipe", "plugin.protocol"},
}
"""What each room may import besides itself: whole rooms, or single modules."""

PACKAGES: dict[str, set[str]] = {
    "plugin": {"vllm"},
    "engines": set(),
    "collectors": {"prometheus_client", "pynvml", "msgspec", "zmq"},
    "agent": {"numpy", "opentelemetry", "prometheus_client"},
}
"""The packages other than the standard library of each room. Only vLLM, which is present where the plugin runs, for `plugin`."""

OPTIONAL: dict[str, set[str]] = {
    # The packages of the extra `agent`: without them the command reports how to install them.
    "__main__.py": {"agent.inventory", "agent.loop", "agent.self_metrics", "agent.settings"},
    # The packages of the extra `events`: msgspec and pyzmq.
    "agent/collector_registry.py": {
        "collectors.forward_pass",
        "collectors.kv_events",
        "collectors.sglang_requests",
        "collectors.trtllm_iterations",
        "collectors.trtllm_requests",
    },
}
"""The modules that are imported inside a function, because they need an optional dependency."""

TESTED_BY: dict[str, str] = {
    "agent/otlp_spans.py": "agent/test_step_buffer.py",
    "agent/self_metrics.py": "agent/test_loop.py",
    "collectors/base.py": "agent/test_collector_runner.py",
    "collectors/decode_errors.py": "collectors/test_zmq_subscriber.py",
    "collectors/measurement.py": "collectors/test_exposition.py",
    "plugin/model.py": "plugin/test_protocol.py",
}
"""Test files of modules without a file of their name. All tables in `engines/` are tested by `collectors/test_exposition.py`."""


def _room(path: pathlib.Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def _own_imports(path: pathlib.Path) -> Iterator[str]:
    """Yield the modules of this package that a module imports, such as ``plugin.model``; names that are not modules are left out."""
    for name in imports(path):
        parts = name.split(".")[1:]
        if name.startswith(f"{PACKAGE}.") and SOURCE.joinpath(*parts).with_suffix(".py").exists():
            yield ".".join(parts)


def test_each_room_imports_only_what_it_may() -> None:
    """The table ALLOWED, for all imports, also those inside functions."""
    crossing = {
        (str(path.relative_to(SOURCE)), name)
        for path in modules("gpu_agent")
        if (room := _room(path))
        for name in _own_imports(path)
        if name.split(".")[0] != room and not {name, name.split(".")[0]} & ALLOWED[room]
    }
    assert not crossing


def test_each_room_imports_only_its_packages() -> None:
    """The table PACKAGES: plugin and engines need the standard library only, and vLLM only where vLLM loads the plugin."""
    known = {*sys.stdlib_module_names, PACKAGE}
    foreign = {
        (str(path.relative_to(SOURCE)), name.split(".")[0])
        for path in modules("gpu_agent")
        if (room := _room(path))
        for name in imports(path)
        if name.split(".")[0] not in known | PACKAGES[room]
    }
    assert not foreign
    assert {path.name for path in modules("gpu_agent") if "vllm" in imports(path)} <= {"vllm_plugin.py"}


def test_imports_inside_functions_are_optional_dependencies() -> None:
    """Every other import is at the top of its module."""
    found: dict[str, set[str]] = {}
    for path in modules("gpu_agent"):
        for function in functions(path):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom | ast.Import):
                    module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
                    found.setdefault(str(path.relative_to(SOURCE)), set()).add(module.removeprefix(f"{PACKAGE}."))
    assert found == OPTIONAL


@pytest.mark.parametrize("room", ALLOWED)
def test_each_room_says_what_it_holds(room: str) -> None:
    """Its `__init__` has only a docstring, in two or three sentences."""
    text = tree(SOURCE / room / "__init__.py")
    assert len(text.body) == 1 and ast.get_docstring(text)


def test_every_module_has_a_test_file() -> None:
    """The file of its name in the same room, or the one in TESTED_BY."""
    tests = ROOT / "tests" / "gpu_agent"
    missing = []
    for path in modules("gpu_agent"):
        name = path.relative_to(SOURCE)
        if len(name.parts) > 1 and name.name != "__init__.py" and name.parts[0] != "engines":
            expected = tests / TESTED_BY.get(str(name), f"{name.parts[0]}/test_{name.name}")
            missing += [] if expected.exists() else [str(name)]
    assert not missing
    assert all((SOURCE / name).exists() and not (tests / name).with_name(f"test_{pathlib.Path(name).name}").exists() for name in TESTED_BY)


def test_the_distribution_has_no_dependencies() -> None:
    """`pip install ./gpu_agent` installs the plugins only; the packages of the agent and of its sources are extras."""
    project = tomllib.loads((DISTRIBUTION / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == [] and set(project["optional-dependencies"]) == {"agent", "events"}


# In an interpreter without site-packages: vLLM's one class is replaced by a stand-in.
_PLUGIN = """
import importlib, os, pathlib, sys, types
sys.path.insert(0, sys.argv[1])
loggers = types.ModuleType("vllm.v1.metrics.loggers")
loggers.StatLoggerBase = object
for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[loggers.__name__] = loggers
folder = pathlib.Path(sys.argv[1], "legato_gpu_agent", "plugin")
names = [f"legato_gpu_agent.plugin.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"]
for name in names:
    importlib.import_module(name)
os.mkfifo(os.environ["LEGATO_ENGINE_PIPE"], 0o600)
from legato_gpu_agent.plugin import pipe, protocol, vllm_plugin
reader = pipe.open_pipe(os.environ["LEGATO_ENGINE_PIPE"])
logger = vllm_plugin.LegatoStatLogger(None, 1)
for running in (3, 4):
    logger.record(types.SimpleNamespace(num_running_reqs=running), None)
steps = [protocol.decode(each) for each in protocol.split_datagrams(os.read(reader, 65536))]
print(len(names), *[f"{each.engine.id}:{each.step.number}:{each.step.running}" for each in steps])
"""


def test_the_plugin_records_steps_without_any_package(tmp_path: pathlib.Path) -> None:
    """Every module of the plugin is imported and two steps are recorded, in an interpreter with the standard library only."""
    environ = {"LEGATO_ENGINE_PIPE": str(tmp_path / "engine.pipe"), "LEGATO_ENGINE_ID": "e"}
    command = [sys.executable, "-I", "-S", "-c", _PLUGIN, str(DISTRIBUTION)]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    count = len(list((SOURCE / "plugin").glob("*.py"))) - 1
    assert run.stdout.split() == [str(count), "e/1:1:3", "e/1:2:4"], run.stderr


def test_the_command_without_its_extra_names_the_remedy() -> None:
    """In one sentence, with exit status 1; its help works without the extra."""
    code = f"import sys; sys.path.insert(0, {str(DISTRIBUTION)!r}); from legato_gpu_agent.__main__ import main; main(sys.argv[1:])"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1 and run.stdout == "" and run.stderr.count("\n") == 1
    assert run.stderr.startswith("legato-gpu-agent: ") and "is not installed" in run.stderr
    assert run.stderr.endswith("pip install './gpu_agent[agent]'\n")
    help_text = subprocess.run([sys.executable, "-I", "-S", "-c", code, "--help"], capture_output=True, text=True, check=True).stdout
    assert "LEGATO_ENDPOINT" in help_text
