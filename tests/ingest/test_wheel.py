"""The built distribution: it contains the schema and the dashboards, and `legato serve` starts from it without a checkout."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import zipfile

import httpx
import pytest

from helpers.repo.repository import ROOT
from helpers.servers.serving import legato, serve_process

PATTERNS = ("schema/*.sql", "schema/cluster/*.sql", "schema/**/replaced.json", "dashboards/legato-*.json", "dashboards/alerts/*.sql")
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
def unpacked(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The unpacked wheel, far from any checkout."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


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


def test_serve_starts_from_the_wheel(unpacked: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It migrates a new store with the packed schema and answers; the packed dashboards and the cluster's schema are found too."""
    monkeypatch.chdir(tmp_path)
    environ = {"PYTHONPATH": str(unpacked)}
    script = (
        "import legato_ingest; from legato_ingest.cli.grafana import dashboard_files; from legato_ingest.settings import load\n"
        "from legato_ingest.storage import migrate\n"
        "own, cluster = load(), load(schema_dir='schema/cluster')\n"
        "boards, files = dashboard_files.load(own.dashboards_dir), migrate.load(cluster.schema_dir)\n"
        "print(legato_ingest.__file__, own.schema_dir, len(boards), len(files))"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    package = unpacked / "legato_ingest"
    files = len(list((ROOT / "schema" / "cluster").glob("*.sql")))
    assert done.stdout.split() == [str(package / "__init__.py"), str(package / "data" / "schema"), "8", str(files)], done.stderr
    with serve_process(tmp_path / "store", **environ) as served:
        assert httpx.post(served.read, content="SELECT count() FROM streams").text == "0\n"
        status = legato("schema", "status", environ=served.environ)
        assert status.returncode == 0 and "0022" in status.stdout and "missing" not in status.stdout
