"""The administration commands on an open store: apply the schema, report its state, apply objectives, repeat attribution and rollups, back
up.

The admin socket (``admin_app``) and the command line run the same functions; the store's lock decides which of the two holds the store.
Nothing here opens or locks a store.
"""

from __future__ import annotations

from typing import Any

from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.errors import SettingsError
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import load as load_objectives
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import Settings
from legato_ingest.storage import Store, backup, migrate, objective_rows
from legato_ingest.storage.chdb import backups_of
from legato_ingest.storage.wal import left_aside

__all__ = ["apply_objectives", "apply_schema", "attribute_again", "back_up", "roll_up_again", "schema_state"]


def apply_schema(settings: Settings, store: Store) -> dict[str, Any]:
    """Apply the missing migrations. Return ``{"applied": [NNNN_name, …]}``. Raises ``LegatoError``."""
    done = migrate.apply(store, migrate.load(settings.schema_dir))
    return {"applied": [f"{migration.number:04}_{migration.name}" for migration in done]}


def schema_state(settings: Settings, store: Store) -> dict[str, Any]:
    """Return each migration file with its state (applied, changed since), and the newest number that is applied."""
    return migrate.status(store, migrate.load(settings.schema_dir))


def attribute_again(settings: Settings, store: Store, since_s: int) -> dict[str, Any]:
    """Judge again the streams that started in the last ``since_s`` seconds (0: all). Migrates the store first."""
    migrate.apply(store, migrate.load(settings.schema_dir))
    done = dict(AttributionWorker(store, settings, Metrics()).again(since_s))
    if settings.server is not None:
        # The rollup worker of a server's store follows its own verdicts and would miss these.
        RollupWorker(store, settings, Metrics()).again(since_s)
    return done


def roll_up_again(settings: Settings, store: Store, since_s: int) -> dict[str, Any]:
    """Compute the rollups of the last ``since_s`` seconds (0: all) again. Migrates the store first."""
    migrate.apply(store, migrate.load(settings.schema_dir))
    return dict(RollupWorker(store, settings, Metrics()).again(since_s, samples=True))


def apply_objectives(settings: Settings, store: Store, rollups: RollupWorker | None = None) -> dict[str, Any]:
    """Apply the objectives of the file and of the settings, and compute all rollups again. Migrates the store first.

    Return whether the objectives ``changed``, the number of ``objectives``, and what was computed. Raises ``SettingsError``.
    """
    objectives = load_objectives(settings)
    migrate.apply(store, migrate.load(settings.schema_dir))
    present = objective_rows.applied(store)
    if settings.objectives_file is None and len(present) > 1:
        raise SettingsError(
            f"no LEGATO_OBJECTIVES_FILE, and {len(present)} objectives apply: set it as for `legato serve`; an empty file removes them"
        )
    changed = objective_rows.apply(store, objectives)
    worker = rollups or RollupWorker(store, settings, Metrics())
    return {"changed": changed, "objectives": len(objectives), **worker.again(0)}


def back_up(settings: Settings, store: Store, name: str) -> dict[str, Any]:
    """Back up the embedded store under its folder of backups, and verify the backup by restoring it. ``aside``: what it lacks, in words."""
    done = backup.backup(store, folder=backups_of(settings.store_path), name=name)
    return {**done, "aside": left_aside(settings.store_path)}
