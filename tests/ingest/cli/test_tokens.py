"""`legato token`."""

from __future__ import annotations

import os
import pathlib

from helpers.servers.serving import legato
from legato_ingest.auth import tokens


def test_the_commands(tmp_path: pathlib.Path) -> None:
    """`legato token` adds, lists without secrets and removes; each mistake is reported in one line with exit status 1."""
    path = tmp_path / "tokens.toml"
    environ = {"LEGATO_TOKENS_FILE": str(path)}
    added = legato("token", "add", "app", "--tenant", "shop", "--write", environ=environ)
    secret = added.stdout.strip()
    assert added.returncode == 0 and secret.startswith("legato_") and secret not in added.stderr
    listed = legato("token", "list", environ=environ)
    assert "app" in listed.stdout and "shop" in listed.stdout and secret not in listed.stdout
    page = legato("token", "add", "page", "--tenant", "web", "--write", "--origin", "https://Shop.example/", environ=environ)
    assert page.returncode == 0 and tokens.load(path)[1].origin == "https://shop.example"
    assert "https://shop.example" in legato("token", "list", environ={**environ, "COLUMNS": "120"}).stdout
    for arguments, message in (
        (("add", "app", "--tenant", "shop", "--read"), "already has a token app"),
        (("add", "other", "--tenant", "shop"), "one of --write and --read"),
        (("add", "other", "--tenant", "a'b", "--read"), "tenant"),
        (("add", "other", "--tenant", "shop", "--read", "--origin", "https://a.example"), "only a token that may write"),
        (("add", "other", "--tenant", "shop", "--write", "--origin", "https://a.example/page"), "scheme and host"),
        (("remove", "missing"), "no token missing"),
    ):
        failed = legato("token", *arguments, environ=environ)
        assert failed.returncode == 1 and message in failed.stderr and failed.stderr.count("\n") == 1, failed.stderr
    assert (
        legato("token", "remove", "app", environ=environ).returncode == legato("token", "remove", "page", environ=environ).returncode == 0
    )
    assert tokens.load(path) == ()
    nowhere = legato("token", "list", environ={"LEGATO_TOKENS_FILE": os.devnull + "/x"})
    assert nowhere.returncode == 1 and "legato token add" in nowhere.stderr
