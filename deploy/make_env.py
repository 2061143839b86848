"""Generate the passwords and tokens for `docker compose`, once.

    python3 deploy/make_env.py

No password has a default. `.env` (mode 0600) contains the passwords and tokens that compose passes to the containers. `.secrets/tokens`
contains the ingest's file of token hashes and the Collector's list of tokens, in a folder that only its owner can enter. Existing files are
kept: delete both `.env` and `.secrets/` to generate new secrets. The script needs only Python's standard library.
"""

from __future__ import annotations

import os
import pathlib
import secrets
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "ingest"))

from legato_ingest.auth.tokens import READ, WRITE, add  # noqa: E402
from legato_ingest.definitions import ALL_TENANTS  # noqa: E402

_ENV, _FOLDER = ROOT / ".env", ROOT / ".secrets"


def main() -> None:
    """Write `.env` and `.secrets/`, and refresh the copy of the dashboards. Exit with an error if only one of the two exists."""
    if _ENV.exists() != _FOLDER.exists():
        raise SystemExit(f"found only one of {_ENV.name} and {_FOLDER.name}/, which belong together: delete it to generate both again")
    if not _ENV.exists():
        _write()
        print(f"wrote {_ENV.name} and {_FOLDER.name}/: the passwords and tokens of this installation; keep them")
    # Grafana loads every JSON file in a folder as a dashboard, so the dashboards are copied to a separate folder.
    boards = _FOLDER / "dashboards"
    shutil.rmtree(boards, ignore_errors=True)
    boards.mkdir()
    boards.chmod(0o755)
    for path in sorted((ROOT / "dashboards").glob("legato-*.json")):
        shutil.copy(path, boards)


def _write() -> None:
    _FOLDER.mkdir(mode=0o700)
    tokens = _FOLDER / "tokens"
    tokens.mkdir()
    tokens.chmod(0o755)
    hashes, clients = tokens / "tokens.toml", tokens / "collector-tokens"
    write = add(hashes, "applications", "main", WRITE)
    read = add(hashes, "grafana", ALL_TENANTS, READ)
    clients.write_text(f"{write}\n", encoding="utf-8")
    for path in (hashes, clients):
        # The containers run as other users, so the files are readable by all; the parent folder keeps other users of this host out.
        path.chmod(0o644)
    lines = {
        "LEGATO_STORE_PASSWORD": secrets.token_urlsafe(24),
        "GF_SECURITY_ADMIN_PASSWORD": secrets.token_urlsafe(24),
        "LEGATO_TOKEN": write,
        "LEGATO_READ_TOKEN": read,
        # Grafana does not start without an address for its alerts: replace this one.
        "LEGATO_ALERT_WEBHOOK": "http://127.0.0.1:9/",
    }
    with os.fdopen(os.open(_ENV, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(f"{name}={value}\n" for name, value in lines.items()))


if __name__ == "__main__":
    main()
