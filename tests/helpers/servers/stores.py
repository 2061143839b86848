"""A cache of prepared stores: each is built once, and every test module works on a copy.

Applying every file of `schema/` to an empty folder takes 1.1 s of processor time; opening a copy takes 0.15 s. A store that was filled by
the attribution and the rollups takes up to a minute to build.

The cache is the folder `.build/stores/` of the checkout. Its key is a hash of the sources that can change the content of a store: the
schema, the three distributions, the demo with its recordings, and the helpers of the tests. A change in any of these files builds the
stores again, so a defect in the code that fills a store is still found. File locks make the cache safe for several processes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import chdb

from legato_ingest.storage import EmbeddedStore, Store, migrate

__all__ = ["SCHEMA", "copy_migrated", "copy_of", "empty", "migrated"]

_ROOT = pathlib.Path(__file__).resolve().parents[3]
SCHEMA = _ROOT / "schema"
_STORES = _ROOT / ".build" / "stores"
# A copy of a store contains nothing but what these files determine.
_SOURCES = ("schema/*.sql", "sdk/**/*.py", "ingest/**/*.py", "gpu_agent/**/*.py", "demo/**/*", "tests/helpers/**/*.py")
_KEPT_S = 86_400.0
_FILLED = """
SELECT name FROM system.tables
WHERE database = currentDatabase() AND engine LIKE '%MergeTree' AND total_rows > 0 AND name != 'schema_migrations'"""


@cache
def _key() -> str:
    digest = hashlib.sha256(chdb.__version__.encode())
    for pattern in _SOURCES:
        for path in sorted(_ROOT.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"\0{path.relative_to(_ROOT)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


@contextmanager
def _locked(path: pathlib.Path, operation: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, operation)
        try:
            yield
        finally:
            # Not left to the close: a child that was forked meanwhile has the same lock.
            fcntl.flock(file, fcntl.LOCK_UN)


def copy_of(name: str, build: Callable[[pathlib.Path], None], target: pathlib.Path, age_s_max: float = float("inf")) -> None:
    """Copy what ``build`` writes into an empty folder to ``target``, which must not exist yet.

    ``build`` runs only when the cache has no such folder, or one older than ``age_s_max``. If ``build`` raises, nothing is kept.
    """
    folder = _STORES / _key()
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    lock, kept = folder / f"{name}.lock", folder / name
    while True:
        with _locked(lock, fcntl.LOCK_SH):
            if _is_fresh(kept, age_s_max):
                shutil.copytree(kept, target, symlinks=True)
                return
        with _locked(lock, fcntl.LOCK_EX):
            if not _is_fresh(kept, age_s_max):
                _build(build, kept)


def _is_fresh(kept: pathlib.Path, age_s_max: float) -> bool:
    return kept.exists() and time.time() - kept.stat().st_mtime < age_s_max


def _build(build: Callable[[pathlib.Path], None], kept: pathlib.Path) -> None:
    _forget_old_keys()
    shutil.rmtree(kept, ignore_errors=True)
    made = pathlib.Path(tempfile.mkdtemp(dir=kept.parent, prefix="building-"))
    try:
        build(made)
        os.utime(made)
        made.rename(kept)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _forget_old_keys() -> None:
    """Delete the stores of other versions of the sources that were not used for a day."""
    for folder in _STORES.iterdir():
        if folder.name != _key() and time.time() - folder.stat().st_mtime > _KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)


def migrated(path: pathlib.Path) -> None:
    """Create a store with the whole schema in the empty folder ``path``."""
    store = EmbeddedStore(path)
    try:
        migrate.apply(store, migrate.load(SCHEMA))
    finally:
        store.close()


def copy_migrated(path: pathlib.Path) -> None:
    """Create a store with the whole schema at ``path``, as a copy. ``path`` must not exist; its parents are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    copy_of("migrated", migrated, path)


def empty(store: Store) -> None:
    """Delete the rows of every table but `schema_migrations`. Tables without rows are left alone: each TRUNCATE takes 4 ms."""
    for (table,) in store.select(_FILLED):
        store.command(f"TRUNCATE TABLE {table}")
