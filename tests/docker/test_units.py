"""The systemd units: their commands exist, their settings are Legato's, and systemd accepts them where it is installed."""

from __future__ import annotations

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from helpers.repo.repository import ROOT

PTRACE = 1 << 19
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def service(path: pathlib.Path) -> dict[str, list[str]]:
    """Return the keys of the section [Service]; a key may occur several times."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_an_installed_command(path: pathlib.Path) -> None:
    """The program of `ExecStart` is one that the distribution installs, and its arguments are accepted."""
    configparser.ConfigParser(strict=False, interpolation=None).read_string(path.read_text(encoding="utf-8"))
    (command,) = service(path)["ExecStart"]
    program, *arguments = command.split()
    installed = pathlib.Path(sys.executable).with_name(pathlib.PurePath(program).name)
    done = subprocess.run([installed, *arguments, "--help"], capture_output=True, text=True, check=False, timeout=60)
    assert program.startswith("/opt/legato/bin/") and done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_sets_known_variables_and_few_privileges(path: pathlib.Path) -> None:
    """Variables are documented settings; no capability (but one for the agent of root), no new privileges, not root."""
    keys = service(path)
    documented = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for setting in keys["Environment"]:
        name = setting.partition("=")[0]
        assert f"`{name}`" in documented, name
    assert (
        keys["CapabilityBoundingSet"] == ["CAP_SYS_PTRACE" if path.stem == "legato-gpu-agent" else ""] and "AmbientCapabilities" not in keys
    )
    assert keys["NoNewPrivileges"] == ["yes"] and keys["User"] == ["legato"]
    assert int(keys["TimeoutStopSec"][0]) >= 20


def own_capabilities() -> int:
    """Return the capabilities of this process."""
    status = pathlib.Path("/proc/self/status")
    found = re.search(r"CapEff:\s*(\w+)", status.read_text(encoding="utf-8")) if status.exists() else None
    return int(found[1], 16) if found else 0


@pytest.mark.skipif(not own_capabilities() & PTRACE or not shutil.which("setpriv"), reason="this user has no CAP_SYS_PTRACE to keep")
@pytest.mark.parametrize(("user", "capabilities", "sees"), [("0", PTRACE, True), ("10001", 0, False)])
def test_only_an_agent_of_root_has_the_capability(user: str, capabilities: int, sees: bool) -> None:
    """With the unit's bounding set root sees the files of another process of root, as it must; another user has no capability."""
    (unit,) = (path for path in UNITS if path.stem == "legato-gpu-agent")
    kept = service(unit)["CapabilityBoundingSet"][0].removeprefix("CAP_").lower()
    limits = ["--bounding-set", f"-all,+{kept}", "--inh-caps", "-all", "--no-new-privs", "--reuid", user, "--regid", user, "--clear-groups"]
    look = f"grep CapEff /proc/self/status; ls /proc/{os.getpid()}/fd"
    done = subprocess.run(["setpriv", *limits, "sh", "-c", look], capture_output=True, text=True, check=False, timeout=60)
    assert int(done.stdout.split()[1], 16) == capabilities and (done.returncode == 0) == sees, done.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_a_unit(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """`systemd-analyze verify` has no complaint but the missing program; without systemd every line must be a key and a value."""
    text = path.read_text(encoding="utf-8")
    if shutil.which("systemd-analyze"):
        copy = tmp_path / path.name
        copy.write_text(re.sub(r"/opt/legato/bin/\S+", "/bin/true", text).replace("User=legato", "User=root"), encoding="utf-8")
        done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False, timeout=60)
        assert path.name not in done.stderr, done.stderr
    assert all(re.fullmatch(r"#.*|\[\w+\]|[A-Z]\w+=.*|", line) for line in text.splitlines())


def test_the_documented_installation_fits_the_unit() -> None:
    """The commands of docs/operating.md to install, upgrade and go back are accepted, install what the unit needs, and name its store."""
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    section = page.partition("## Install, upgrade, remove")[2].partition("\n## ")[0]
    (unit,) = (path for path in UNITS if path.stem == "legato")
    (store,) = (setting.partition("=")[2] for setting in service(unit)["Environment"] if setting.startswith("LEGATO_STORE="))
    install = re.findall(r"/opt/legato/bin/pip install ('?\S+)", section + unit.read_text(encoding="utf-8"))
    assert store.startswith("chdb://") and [each.strip("'`,") for each in install] == ["./ingest[chdb]"] * 3
    commands = re.findall(r"/opt/legato/bin/legato (.+)", section)
    assert {command.split()[0] for command in commands} == {"doctor", "backup", "restore"}
    for command in commands:
        arguments = command.split()
        line = [pathlib.Path(sys.executable).with_name("legato"), *arguments, "--help"]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "--store" not in arguments or arguments[arguments.index("--store") + 1] == store
    backups = re.findall(r"/var/lib/legato/\S+\.backups", section)
    assert backups and all(each == f"{store.removeprefix('chdb://')}.backups" for each in backups)
