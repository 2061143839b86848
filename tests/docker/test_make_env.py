"""deploy/make_env.py: the generated secrets, the question for the alert webhook, and the folders that Grafana loads."""

from __future__ import annotations

import os
import pathlib
import pty
import shutil
import subprocess
import sys

import pytest

from helpers.repo.repository import ROOT

WEBHOOK = "LEGATO_ALERT_WEBHOOK"
ADDRESS = "https://hooks.example/T1?key=hush"
NONE = "no contact point is configured"


class Checkout:
    """A copy of the folders that the script reads."""

    def __init__(self, folder: pathlib.Path) -> None:
        for name in ("deploy", "ingest", "dashboards"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "dist"))
        self.folder, self.env = folder, folder / ".env"

    def run(self, answer: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the script, without a terminal or with this answer on one."""
        environ = {**{name: value for name, value in os.environ.items() if name != WEBHOOK}, **environ}
        command = [sys.executable, str(self.folder / "deploy" / "make_env.py")]
        if answer is None:
            return subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
        keyboard, terminal = pty.openpty()
        try:
            os.write(keyboard, f"{answer}\n".encode())
            return subprocess.run(command, env=environ, stdin=terminal, capture_output=True, text=True, check=False, timeout=60)
        finally:
            os.close(keyboard)
            os.close(terminal)

    def values(self) -> dict[str, str]:
        """The variables in `.env`."""
        return dict(line.split("=", 1) for line in self.env.read_text().splitlines())

    def alerting(self) -> set[str]:
        """The names of the files that Grafana loads for alerts."""
        return {path.name for path in (self.folder / ".secrets" / "alerting").iterdir()}


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> Checkout:
    """A checkout without `.env`."""
    return Checkout(tmp_path / "checkout")


def test_secrets_are_generated_once(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    """At least 32 characters, different in each checkout, readable by the owner only; the same after a second run."""
    other = Checkout(tmp_path / "other")
    assert checkout.run().returncode == other.run().returncode == 0
    first, second = checkout.values(), other.values()
    assert all(len(first[name]) >= 32 and first[name] != second[name] for name in set(first) - {WEBHOOK})
    secrets = checkout.folder / ".secrets"
    assert checkout.env.stat().st_mode & 0o777 == 0o600 and secrets.stat().st_mode & 0o777 == 0o700
    assert first["LEGATO_TOKEN"] == (secrets / "tokens" / "collector-tokens").read_text().strip()
    assert first["LEGATO_TOKEN"] not in (secrets / "tokens" / "tokens.toml").read_text()
    assert checkout.run().returncode == 0 and checkout.values() == first
    checkout.env.unlink()
    half = checkout.run()
    assert half.returncode == 1 and "delete it" in half.stderr


def test_without_a_webhook_there_is_no_contact_point(checkout: Checkout) -> None:
    """Only the rules are loaded, and each run says that alerts are sent nowhere. The placeholder of earlier versions counts as none."""
    for _ in range(2):
        assert NONE in checkout.run().stdout
        assert checkout.values()[WEBHOOK] == "" and checkout.alerting() == {"rules.json"}
    checkout.env.write_text(checkout.env.read_text().replace(f"{WEBHOOK}=", f"{WEBHOOK}=http://127.0.0.1:9/"))
    assert NONE in checkout.run().stdout and checkout.alerting() == {"rules.json"}


def test_the_webhook_is_asked_for_on_a_terminal(checkout: Checkout) -> None:
    """Once: the answer is in `.env`. The output names the host only, because an address may contain a secret."""
    done = checkout.run(ADDRESS)
    assert "webhook for alerts" in done.stdout and "hooks.example" in done.stdout and "hush" not in done.stdout + done.stderr
    assert checkout.values()[WEBHOOK] == ADDRESS and checkout.alerting() == {"rules.json", "contactpoints.yaml", "policies.yaml"}
    again = checkout.run("")
    assert "webhook for alerts" not in again.stdout and "hooks.example" in again.stdout and len(checkout.alerting()) == 3


def test_the_webhook_may_be_set_or_removed_later(checkout: Checkout) -> None:
    """By the environment at the first run, afterwards in `.env`."""
    checkout.run(**{WEBHOOK: ADDRESS})
    assert checkout.values()[WEBHOOK] == ADDRESS and len(checkout.alerting()) == 3
    checkout.env.write_text(checkout.env.read_text().replace(ADDRESS, ""))
    assert NONE in checkout.run().stdout and checkout.alerting() == {"rules.json"}


@pytest.mark.parametrize("address", ["hooks.example/T1", "https://", "ftp://hooks.example", "https://hooks.example/$HOME", "https://a b"])
def test_a_wrong_webhook_is_refused(address: str, checkout: Checkout) -> None:
    """Before anything is written."""
    done = checkout.run(**{WEBHOOK: address})
    assert done.returncode == 1 and WEBHOOK in done.stderr and not checkout.env.exists()


def test_folders_of_running_containers_stay(checkout: Checkout) -> None:
    """A second run replaces the files in the mounted folders. A container would see a new folder only after a restart."""
    checkout.run()
    boards = checkout.folder / ".secrets" / "dashboards"
    before = boards.stat().st_ino
    (boards / "legato-retired.json").write_text("{}")
    (checkout.folder / "dashboards" / "legato-itl.json").write_text("{}")
    checkout.run()
    assert boards.stat().st_ino == before and (boards / "legato-itl.json").read_text() == "{}"
    assert {path.name for path in boards.iterdir()} == {path.name for path in (ROOT / "dashboards").glob("legato-*.json")}
