"""The built distributions, each installed alone into an empty environment: nothing is missing that a checkout would have."""

from __future__ import annotations

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import zipfile

import httpx
import pytest

from helpers.platform.environment import Environment, environment
from helpers.repo.repository import ROOT
from helpers.servers.grafana import TOKEN, grafana_double
from helpers.servers.serving import serve_process

PATTERNS = ("schema/*.sql", "schema/cluster/*.sql", "schema/**/replaced.json", "dashboards/legato-*.json", "dashboards/alerts/*.sql")
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
PAGES = sorted(
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("[!.]*/**/*.md"), *UNITS) if "pip install" in path.read_text(encoding="utf-8")
)
IGNORED = shutil.ignore_patterns("__pycache__", "dist", ".*")


def run(*command: str, cwd: pathlib.Path) -> None:
    """Run a Python module to its end."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def wheel_of(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The wheel of a folder or of an sdist, without network access."""
    folder.mkdir()
    run("pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", str(source), "--wheel-dir", str(folder), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the folders that a build reads."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("ingest", "schema", "dashboards"):
        shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: pathlib.Path) -> pathlib.Path:
    """The wheel built from the checkout."""
    return wheel_of(checkout / "ingest", checkout / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel of `legato-ingest`, far from any checkout."""
    return environment(tmp_path_factory.mktemp("installed") / "ingest", wheel, "chdb", "grafana")


def contents(wheel: pathlib.Path) -> dict[str, list[bytes]]:
    """The lines of each file; those of RECORD are in no particular order."""
    with zipfile.ZipFile(wheel) as archive:
        lines = {name: archive.read(name).splitlines() for name in archive.namelist()}
    return {name: sorted(each) if name.endswith("/RECORD") else each for name, each in lines.items()}


def files_of(wheel: pathlib.Path) -> dict[str, bytes]:
    """The data files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("legato_ingest/data/")]
        return {name.removeprefix("legato_ingest/data/"): archive.read(name) for name in names}


def test_the_wheel_has_the_schema_and_the_dashboards(wheel: pathlib.Path) -> None:
    """Each file that a program reads, unchanged, and nothing else of the two folders."""
    wanted = {path.relative_to(ROOT).as_posix(): path.read_bytes() for pattern in PATTERNS for path in ROOT.glob(pattern)}
    assert len(wanted) > 60 and files_of(wheel) == wanted


def test_the_wheel_of_the_sdist_is_the_same(checkout: pathlib.Path, wheel: pathlib.Path) -> None:
    """As `python -m build` makes it: the sdist is built first and the wheel from the sdist alone."""
    sdists = checkout / "sdist"
    run("hatchling", "build", "-t", "sdist", "-d", str(sdists), cwd=checkout / "ingest")
    (sdist,) = sdists.glob("*.tar.gz")
    again = wheel_of(sdist, checkout / "again")
    assert contents(wheel) == contents(again)


def test_a_build_outside_of_a_checkout_fails(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With the missing files in the message: a wheel without them would not start."""
    shutil.copytree(checkout / "ingest", tmp_path / "ingest")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path / "ingest", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "schema/*.sql matches no file: build in a checkout" in done.stderr


def test_an_editable_install_has_no_copy() -> None:
    """It reads the checkout, so a changed file is used at once."""
    assert not (ROOT / "ingest" / "legato_ingest" / "data").exists()
    script = "from legato_ingest.settings import load; print(load().schema_dir, load().dashboards_dir)"
    done = subprocess.run([sys.executable, "-c", script], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(ROOT / "schema"), str(ROOT / "dashboards")]


def test_the_installed_package_has_its_own_files(installed: Environment) -> None:
    """The schema, also the cluster's, and the dashboards are those of the wheel."""
    script = (
        "import legato_ingest; from legato_ingest.dashboards import files as dashboard_files; from legato_ingest.settings import load\n"
        "from legato_ingest.storage import migrate\n"
        "own, cluster = load(), load(schema_dir='schema/cluster')\n"
        "boards, files = dashboard_files.load(own.dashboards_dir), migrate.load(cluster.schema_dir)\n"
        "print(legato_ingest.__file__, own.schema_dir, len(boards), len(files))"
    )
    done = installed.run("python", "-c", script)
    files = len(list((ROOT / "schema" / "cluster").glob("*.sql")))
    module, schema, *counts = done.stdout.split()
    package = pathlib.Path(module).parent
    assert (
        package.is_relative_to(installed.folder)
        and schema == str(package / "data" / "schema")
        and counts == [str(len(list((ROOT / "dashboards").glob("legato-*.json")))), str(files)]
    ), done


def test_the_installed_commands_work(installed: Environment, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`legato serve` migrates a new store and answers, `legato slo` evaluates the rules, and `dashboards push` sends the dashboards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    with serve_process(tmp_path / "store", python=installed.python) as served:
        assert httpx.post(served.read, content="SELECT count() FROM streams").text == "0\n"
        environ = {"LEGATO_STORE": served.environ["LEGATO_STORE"], "LEGATO_READ_URL": served.read}
        status = installed.run("legato", "schema", "status", **environ)
        assert status.returncode == 0 and "0022" in status.stdout and "missing" not in status.stdout, status
        slo = installed.run("legato", "slo", **environ)
        assert slo.returncode == 0 and "no budget burns" in slo.stdout, slo
        with grafana_double() as grafana:
            push = ("dashboards", "push", "--url", grafana.url, "--clickhouse", served.read)
            pushed = installed.run("legato", *push, LEGATO_GRAFANA_TOKEN=TOKEN)
            assert pushed.returncode == 0 and len(grafana.boards) == len(list((ROOT / "dashboards").glob("legato-*.json"))), pushed


def test_without_chdb_an_embedded_store_names_the_extra(tmp_path: pathlib.Path) -> None:
    """In one line: `pip install` of the wheel without extras is for a ClickHouse server."""
    # The store has a separate process, so a module without content stands in for chDB in every process.
    (tmp_path / "chdb.py").write_text("raise ModuleNotFoundError(name=__name__)\n")
    script = "import sys; sys.argv = ['legato', 'serve']; from legato_ingest.cli.main import main; main()"
    environ = {"LEGATO_STORE": f"chdb://{tmp_path / 'store'}", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "pip install './ingest[chdb]'" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_the_sdk_alone(tmp_path: pathlib.Path) -> None:
    """It records with its one dependency, and says what an export needs."""
    made = environment(tmp_path / "sdk", wheel_of(ROOT / "sdk", tmp_path / "wheel"))
    done = made.run("python", "-c", "import legato, legato.asgi; print(*legato.wrap(iter('ab')), legato.__file__); legato.configure()")
    assert done.stdout.startswith(f"a b {made.folder}") and "pip install './sdk[otlp]'" in done.stderr, done


def test_the_agent_alone(tmp_path: pathlib.Path) -> None:
    """Its plugins load without any dependency; with its extra the command lists what it finds."""
    wheel = wheel_of(ROOT / "gpu_agent", tmp_path / "wheel")
    plugins = environment(tmp_path / "plugins", wheel)
    done = plugins.run("python", "-c", "from legato_gpu_agent.plugin import recorder, scheduler_hook; print(recorder.__file__)")
    assert done.stdout.startswith(str(plugins.folder)), done
    agent = environment(tmp_path / "agent", wheel, "agent").run("legato-gpu-agent", "--once", "--print", HOME=str(tmp_path))
    assert "engines were searched" in agent.stdout + agent.stderr, agent


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_install_from_the_checkout(path: pathlib.Path) -> None:
    """No page asks for a name in a package index: Legato is in none, so the name would be a stranger's package."""
    for command in re.findall(r"pip install ([^`\n#]+)", path.read_text(encoding="utf-8")):
        names = [word for word in shlex.split(command.partition(" &&")[0].rstrip(".,;:)")) if not word.startswith("-")]
        assert names and all(name.startswith("./") for name in names), command
