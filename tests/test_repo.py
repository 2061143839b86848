"""Rules of the repository: the shape of the code, imports between distributions, one version, true documents, commands that run."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

import legato
from demo.plan import Plan
from demo.run import Endpoints, recorded, start_server
from helpers.repo import documents
from helpers.repo.repository import ROOT, code_lines, files, functions, imports, modules, public, text_files, tree
from legato_ingest.cli.client import Reader
from legato_ingest.metrics import Metrics
from legato_ingest.settings import Settings

DISTRIBUTIONS = {"sdk": "legato", "ingest": "legato_ingest", "gpu_agent": "legato_gpu_agent"}
ROOMS = (*DISTRIBUTIONS, "dashboards", "demo", "bench", "deploy", "tests")
REFERENCE = ROOT / "docs" / "reference.md"

# Modules of 100 lines or more without a test file of their own, and the file that tests them.
TESTED_BY = {
    "ingest/legato_ingest/attribution/load/engine_steps.py": "tests/ingest/attribution/load/test_engines.py",
    "ingest/legato_ingest/reports/live.py": "tests/dashboards/test_panels_now.py",
    "ingest/legato_ingest/storage/part_list.py": "tests/ingest/storage/test_part_scrub.py",
    "ingest/legato_ingest/storage/process_store.py": "tests/ingest/storage/test_store_process.py",
    "ingest/legato_ingest/storage/wal_records.py": "tests/ingest/storage/test_wal.py",
    "ingest/legato_ingest/storage/store_process_main.py": "tests/ingest/storage/test_store_process.py",
    "ingest/legato_ingest/trace_export/stalled_streams.py": "tests/ingest/trace_export/test_worker.py",
    "ingest/legato_ingest/query/sql_words.py": "tests/ingest/query/test_key_ranges.py",
    "ingest/legato_ingest/trace_export/passed.py": "tests/ingest/trace_export/test_behind.py",
    "ingest/legato_ingest/write/log_writer.py": "tests/ingest/write/test_committer_log.py",
    "ingest/legato_ingest/write/receiver.py": "tests/ingest/write/test_app.py",
    "ingest/legato_ingest/write/waiting.py": "tests/ingest/write/test_outcomes.py",
    "ingest/legato_ingest/web/request_models.py": "tests/ingest/web/test_app.py",
    "ingest/legato_ingest/cli/dashboards.py": "tests/ingest/cli/grafana/test_client.py",
    "ingest/legato_ingest/cli/doctor/command.py": "tests/ingest/cli/doctor/test_emitters.py",
    "ingest/legato_ingest/cli/doctor/endpoints.py": "tests/ingest/cli/doctor/test_doctor.py",
    "ingest/legato_ingest/cli/doctor/findings.py": "tests/ingest/cli/doctor/test_doctor.py",
    "ingest/legato_ingest/dashboards/files.py": "tests/dashboards/test_provisioning.py",
    "ingest/legato_ingest/cli/live.py": "tests/dashboards/test_panels_now.py",
    "ingest/legato_ingest/otlp/model.py": "tests/ingest/otlp/test_spans.py",
    "ingest/legato_ingest/query/reads.py": "tests/ingest/query/test_app.py",
    "ingest/legato_ingest/reports/senders.py": "tests/ingest/cli/doctor/test_emitters.py",
    "ingest/legato_ingest/serve.py": "tests/e2e/test_crash.py",
    "ingest/legato_ingest/storage/clients.py": "tests/ingest/storage/test_server.py",
    "sdk/legato/_body.py": "tests/sdk/test_formats.py",
    "sdk/legato/_decode.py": "tests/sdk/test_formats.py",
    "sdk/legato/_items.py": "tests/sdk/test_wrap.py",
    "sdk/legato/_lines.py": "tests/sdk/test_formats.py",
    "sdk/legato/_records.py": "tests/sdk/test_recorder.py",
    "sdk/legato/_route.py": "tests/sdk/test_provider.py",
    "sdk/legato/_scan.py": "tests/sdk/test_formats.py",
    "sdk/legato/_spans.py": "tests/sdk/test_recorder.py",
}


def _where(path: pathlib.Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def test_no_function_is_longer_than_70_lines() -> None:
    """A function fits on one screen."""
    long = [_where(path, each) for path in modules(*ROOMS) for each in functions(path) if code_lines(path, each) > 70]
    assert not long


def test_no_module_of_a_package_is_longer_than_400_lines() -> None:
    """A module covers one subject."""
    packages = modules(*DISTRIBUTIONS, "dashboards", "demo", "bench")
    lengths = {_where(path): len(path.read_text(encoding="utf-8").splitlines()) for path in packages}
    assert not {path: lines for path, lines in lengths.items() if lines > 400}


def test_every_module_of_100_lines_has_its_tests_where_a_reader_looks() -> None:
    """``ROOM/test_MODULE*.py``, or the file in ``TESTED_BY``, which lists no module without need."""
    listed, missing = set(), []
    for room, package in DISTRIBUTIONS.items():
        for path in modules(room):
            if not path.is_relative_to(ROOT / room / package):
                continue
            where = path.relative_to(ROOT / room / package).parent
            own = list((ROOT / "tests" / room / where).glob(f"test_{path.stem.lstrip('_')}*.py"))
            name = str(path.relative_to(ROOT))
            if own or path.stem.startswith("__") or len(path.read_text(encoding="utf-8").splitlines()) < 100:
                continue
            listed.add(name)
            if not (ROOT / TESTED_BY.get(name, "-")).is_file():
                missing.append(name)
    assert not missing
    assert listed == set(TESTED_BY)


def test_a_module_that_names_the_root_finds_it() -> None:
    """``ROOT = ….parents[n]``: a module that moves to another folder needs another n."""
    root = re.compile(r"^(?:ROOT|_ROOT|FOLDER) = pathlib\.Path\(__file__\)(?:\.resolve\(\))?\.parents\[(\d)\](?!\S| /)", re.M)
    wrong = [
        _where(path)
        for path in modules(*ROOMS)
        for depth in root.findall(path.read_text(encoding="utf-8"))
        if path.parents[int(depth)] != ROOT
    ]
    assert not wrong


def test_every_module_has_a_docstring() -> None:
    """Each module with code opens with a docstring."""
    silent = [_where(path) for path in modules(*ROOMS) if tree(path).body and ast.get_docstring(tree(path)) is None]
    assert not silent


def test_everything_public_has_a_docstring() -> None:
    """Public functions, classes and methods of the distributions and dashboards are documented."""
    silent = [
        f"{_where(path, node)} {node.name}"
        for path in modules(*DISTRIBUTIONS, "dashboards")
        for node in public(path)
        if ast.get_docstring(node) is None
    ]
    assert not silent


@pytest.mark.parametrize("room", [*DISTRIBUTIONS, "bench"])
def test_distributions_meet_in_the_wire_and_the_schema_alone(room: str) -> None:
    """No distribution imports another; none imports the demo, benches or tests. Benches use the demo's recordings, and no more of it."""
    packages = set(DISTRIBUTIONS.values()) - {DISTRIBUTIONS.get(room)}
    forbidden = {"demo"} if room == "bench" else {*packages, "demo", "bench", "tests", "helpers"}
    crossing = {(_where(path), name) for path in modules(room) for name in imports(path) if name.split(".")[0] in forbidden}
    allowed = ("demo.recording", "demo.past") if room == "bench" else ()
    assert not {each for each in crossing if not each[1].startswith(allowed)}


def test_the_sdk_imports_the_opentelemetry_api_alone() -> None:
    """`import legato` loads the standard library and `opentelemetry-api` only; optional packages load where they are used.

    `_provider` is imported by `legato.configure()`, `_in_flight` and `_otlp_session` by `_provider`, and all three by nothing else.
    """
    allowed = {*sys.stdlib_module_names, "opentelemetry", "legato"}
    loaded = [path for path in modules("sdk") if path.name not in ("_provider.py", "_in_flight.py", "_otlp_session.py")]
    names = {name for path in loaded for name in imports(path, at_import_only=True)}
    assert not names & {"legato._provider", "legato._in_flight", "legato._otlp_session"}
    assert {name for name in names if name.split(".")[0] not in allowed} == set()
    beyond_api = (
        "opentelemetry.sdk",
        "opentelemetry.exporter",
        "opentelemetry.proto",
        "opentelemetry.semconv",
        "opentelemetry.instrumentation",
    )
    assert {name for name in names if name.startswith(beyond_api)} == set()


def test_importing_the_sdk_loads_no_exporter() -> None:
    """Importing Legato does not load packages that the application does not use."""
    script = "import sys, legato, legato.asgi; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    heavy = ("openai", "httpx", "numpy", "google.protobuf", "requests", "grpc", "fastapi", "opentelemetry.sdk", "opentelemetry.exporter")
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_there_is_one_version() -> None:
    """All distributions, the SDK's ``__version__`` and the newest release in the CHANGELOG agree."""
    projects = [path for path in files() if path.name == "pyproject.toml" and path.parent != ROOT]
    versions = {tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"] for path in projects}
    released = re.findall(r"^## \[?v?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(projects) >= 2
    assert versions == {legato.__version__} == {released[0]}


def _settings() -> set[str]:
    """The environment variables that the SDK and `legato` read."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in modules("sdk"))
    return set(re.findall(r"\bLEGATO_[A-Z0-9_]*[A-Z0-9]\b", text)) | {f"LEGATO_{name.upper()}" for name in Settings.model_fields}


def test_every_setting_is_documented() -> None:
    """docs/reference.md lists every setting, and no setting that does not exist."""
    page = set(re.findall(r"\bLEGATO_[A-Z0-9_]*[A-Z0-9]\b", REFERENCE.read_text(encoding="utf-8")))
    assert _settings() - page == set()
    read = {
        name for path in modules(*DISTRIBUTIONS) for name in re.findall(r"\bLEGATO_[A-Z0-9_]*[A-Z0-9]\b", path.read_text(encoding="utf-8"))
    }
    assert page - _settings() - read == set()


def test_every_metric_is_documented() -> None:
    """docs/reference.md lists every metric under its exposed name."""
    text = REFERENCE.read_text(encoding="utf-8")
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in Metrics().registry.collect()}
    assert len(names) > 10
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


def test_documents_are_short_and_their_links_resolve() -> None:
    """The README has at most 150 lines, and relative links of all pages point at existing files."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    broken = []
    for path in (path for path in files() if path.suffix == ".md"):
        for target in re.findall(r"\]\((?!https?://|mailto:|#)([^)#\s]+)", path.read_text(encoding="utf-8")):
            if not (path.parent / target).exists():
                broken.append((_where(path), target))
    assert not broken


# Written in pieces, so that this file does not match its own patterns.
_REGISTRIES = re.compile(
    "|".join(("py" + r"pi\.org", "python" + r"hosted\.org", "registry" + r"\.npmjs", "crates" + r"\.io", "proxy" + r"\.golang"))
)
_LOCAL = re.compile("|".join(("/" + "work/", "/" + "root/", "/" + "home/", "/" + "Users/")))
_UNDONE = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")


@pytest.mark.parametrize("pattern", [_REGISTRIES, _LOCAL, _UNDONE], ids=["registries", "local paths", "undone"])
def test_no_file_names_registries_or_local_paths(pattern: re.Pattern[str]) -> None:
    """No download addresses, no paths of one machine, no reminders in comments."""
    found = [f"{_where(path)} {match.group()}" for path, text in text_files() if (match := pattern.search(text))]
    assert not found


def test_pins_are_plain() -> None:
    """Requirement files hold packages with versions and the options -e and -r, and no addresses."""
    for path in ROOT.glob("requirements*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert re.fullmatch(r"|#.*|-e \./\w+(\[\w+\])?|-r [\w-]+\.txt|[\w.-]+(\[[\w,]+\])?==[\w.]+", line), f"{path.name}: {line}"


def test_continuous_integration_runs_what_developers_run() -> None:
    """`.ci/run` is executable, sets CI=true, and runs `make check` and `make test`."""
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert "export CI=true" in text and re.search(r" make check$", text, re.MULTILINE) and re.search(r" make test\b", text)


_SAMPLE = """
import pytest
def test_in_a_test(): pytest.skip("no such tool")
@pytest.mark.skipif(True, reason="no such tool")
def test_by_a_mark(): pass
"""


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_skipped_test_fails_in_continuous_integration(tmp_path: pathlib.Path, ci: str, status: int) -> None:
    """With CI=true a test that would be skipped fails."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_sample.py").write_text(_SAMPLE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    run = subprocess.run(command, env={**os.environ, "CI": ci}, capture_output=True, text=True)
    assert run.returncode == status, run.stdout
    assert ("2 skipped" in run.stdout) is (ci == "")


PAGES = (ROOT / "README.md", ROOT / "docs" / "start.md")
COMMANDS = [(page.name, command) for page in PAGES for command in documents.commands(page)]


def test_the_readme_begins_with_the_two_commands() -> None:
    """The README's first two commands are `make demo` and `make test`."""
    made = [target for command in documents.commands(PAGES[0]) for target in documents.make_targets(command)]
    assert made[:2] == ["demo", "test"]


@pytest.mark.parametrize("command", [command for _, command in COMMANDS if documents.make_targets(command)])
def test_documented_targets_exist(command: str) -> None:
    """Each documented `make` command names an existing target and existing options. (Other tests run the demo.)"""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in documents.make_targets(command):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    if "demo" in documents.make_targets(command):
        options = (ROOT / "demo" / "__main__.py").read_text(encoding="utf-8")
        for option in re.findall(r"--([a-z]+)", command):
            assert re.search(rf'^    {option}: _|"--{option}"', options, re.MULTILINE) or option == "help"


Runner = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Run a documented command as a user would after the demo: `serve` is running, on free ports, and has streams."""
    folder = tmp_path_factory.mktemp("reader")
    endpoints, plan = Endpoints.choose_other(), Plan(("calm",), 1.0, 3.0, "d0c5")
    for page in PAGES:
        for name, text in documents.python_files(page).items():
            (folder / name).write_text(text, encoding="utf-8")
    with recorded(plan, folder, endpoints, Console(quiet=True)) as children:
        start_server(children, plan, endpoints)
        (stream,) = Reader(endpoints.read).rows("SELECT lower(hex(trace_id)) AS id FROM streams WHERE vantage = 'client' LIMIT 1")
        yield lambda command: _run_as_reader(command, folder, endpoints, str(stream["id"]))


def _run_as_reader(command: str, folder: pathlib.Path, endpoints: Endpoints, stream_id: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the pages' example ports, stream ids and environment folder replaced by the test's own."""
    text = command.replace(".venv/bin/", f"{sys.prefix}/bin/")
    text = text.replace(":8123", f":{endpoints.read_port}").replace(":4318", f":{endpoints.otlp_port}")
    text = re.sub(r"\b(TRACE_)?ID\b|<[a-z_ -]*id[a-z_ -]*>", stream_id, text)
    environ = {
        "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        "HOME": str(folder),
        "LEGATO_STORE": f"chdb://{folder}/store",
        "LEGATO_READ_URL": endpoints.read,
        "LEGATO_READ_PORT": str(endpoints.read_port),
        "LEGATO_OTLP_PORT": str(endpoints.otlp_port),
        "LEGATO_ENDPOINT": endpoints.otlp,
        "OPENAI_BASE_URL": f"{endpoints.server}/v1",
        "OPENAI_API_KEY": "demo",
    }
    written = {name for page in PAGES for name in documents.python_files(page)}
    place = folder if any(name in command for name in written) else ROOT
    script = ["bash", "-euo", "pipefail", "-c", text]
    return subprocess.run(script, cwd=place, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("page", "command"), [pair for pair in COMMANDS if documents.is_runnable(pair[1])])
def test_documented_commands_run(reader: Runner, page: str, command: str) -> None:
    """Every command of the README and of docs/start.md succeeds and prints something."""
    result = reader(command)
    assert result.returncode == 0, f"{page}: {result.stderr}"
    assert result.stdout.strip(), page
