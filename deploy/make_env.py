"""Generate the passwords and tokens for `docker compose`, once, and prepare the files that Grafana loads, every time.

    python3 deploy/make_env.py

No password has a default. `.env` (mode 0600) contains the passwords and tokens that compose passes to the containers. `.secrets/tokens`
contains the ingest's file of token hashes and the Collector's list of tokens, in a folder that only its owner can enter. Existing files are
kept: delete both `.env` and `.secrets/` to generate new secrets. The script needs only Python's standard library.

Alerts go to the webhook LEGATO_ALERT_WEBHOOK: from the environment, from `.env`, or, if `.env` does not exist yet, from an answer on the
terminal. Without an address there is no contact point, and every run of the script says so.
"""

from __future__ import annotations

import os
import pathlib
import re
import secrets
import shutil
import sys
from urllib.parse import urlsplit

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "ingest"))

from legato_ingest.auth.tokens import READ, WRITE, add  # noqa: E402
from legato_ingest.definitions import ALL_TENANTS  # noqa: E402

_ENV, _FOLDER = ROOT / ".env", ROOT / ".secrets"
_WEBHOOK = "LEGATO_ALERT_WEBHOOK"
# No character that compose or Grafana interprets in a variable's value.
_ADDRESS = re.compile(r"https?://[^\s$'\"\\/?#]+(?:[/?#][^\s$'\"\\]*)?")
# Earlier versions wrote this address, on which nothing listens.
_PLACEHOLDER = "http://127.0.0.1:9/"


def main() -> None:
    """Write `.env` and `.secrets/`, and refresh Grafana's files. Exit with an error if one of the two is missing or the webhook is bad."""
    if _ENV.exists() != _FOLDER.exists():
        raise SystemExit(f"found only one of {_ENV.name} and {_FOLDER.name}/, which belong together: delete it to generate both again")
    address = _webhook()
    if not _ENV.exists():
        _write(address)
        print(f"wrote {_ENV.name} and {_FOLDER.name}/: the passwords and tokens of this installation; keep them")
    _copy_dashboards()
    _copy_alerting(address)
    if address:
        print(f"alerts go to the webhook at {urlsplit(address).hostname}")
    else:
        print(
            f"no contact point is configured: alerts are shown in Grafana and sent nowhere. To send them to a webhook, set {_WEBHOOK} in "
            f"{_ENV.name} and run `make up` again"
        )


def _webhook() -> str:
    """The address for alerts, or an empty text. A value in the environment has precedence, as in compose."""
    address = os.environ.get(_WEBHOOK)
    if address is None and _ENV.exists():
        lines = dict(line.split("=", 1) for line in _ENV.read_text(encoding="utf-8").splitlines() if "=" in line)
        address = lines.get(_WEBHOOK, "")
    elif address is None and sys.stdin.isatty():
        address = input("webhook for alerts (https://…), or empty for none: ")
    address = (address or "").strip()
    if address in ("", _PLACEHOLDER):
        return ""
    if not _ADDRESS.fullmatch(address):
        raise SystemExit(f"{_WEBHOOK} is no address of a webhook: expected http(s):// and a host, without spaces, quotes, $ and \\")
    return address


def _copy_dashboards() -> None:
    """Grafana loads every JSON file in a folder as a dashboard, so the dashboards get a separate folder."""
    _fill(_folder("dashboards"), sorted((ROOT / "dashboards").glob("legato-*.json")))


def _copy_alerting(address: str) -> None:
    """The rules, and with an address the contact point and the policies: Grafana does not start with a webhook without an address."""
    names = ["rules.json", *(("contactpoints.yaml", "policies.yaml") if address else ())]
    _fill(_folder("alerting"), [ROOT / "dashboards" / "provisioning" / "alerting" / name for name in names])


def _folder(name: str) -> pathlib.Path:
    """A folder in `.secrets/` that a container's user can read; the parent folder keeps other users of this host out."""
    folder = _FOLDER / name
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


def _fill(folder: pathlib.Path, paths: list[pathlib.Path]) -> None:
    """Make these files the folder's only ones. The folder itself stays: a running container would keep a removed one mounted, empty."""
    for path in paths:
        part = folder / f"{path.name}.part"
        shutil.copyfile(path, part)
        part.chmod(0o644)
        part.replace(folder / path.name)
    for path in folder.iterdir():
        if path.name not in {each.name for each in paths}:
            path.unlink()


def _write(address: str) -> None:
    _FOLDER.mkdir(mode=0o700)
    tokens = _folder("tokens")
    hashes, clients = tokens / "tokens.toml", tokens / "collector-tokens"
    write = add(hashes, "applications", "main", WRITE)
    read = add(hashes, "grafana", ALL_TENANTS, READ)
    clients.write_text(f"{write}\n", encoding="utf-8")
    for path in (hashes, clients):
        # The containers run as other users, so the files are readable by all.
        path.chmod(0o644)
    lines = {
        "LEGATO_STORE_PASSWORD": secrets.token_urlsafe(24),
        "GF_SECURITY_ADMIN_PASSWORD": secrets.token_urlsafe(24),
        "LEGATO_TOKEN": write,
        "LEGATO_READ_TOKEN": read,
        _WEBHOOK: address,
    }
    with os.fdopen(os.open(_ENV, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(f"{name}={value}\n" for name, value in lines.items()))


if __name__ == "__main__":
    main()
