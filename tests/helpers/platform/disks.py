"""Small and read-only file systems for single processes."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from functools import cache

__all__ = ["can_mount", "read_only_disk", "small_disk"]

_MOUNT = 'mount -t tmpfs -o size={size} tmpfs "{folder}" && exec "$0" "$@"'


@cache
def can_mount() -> bool:
    """Return whether this user may mount a separate file system (a container may forbid it)."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def read_only_disk(folder: pathlib.Path) -> list[str]:
    """Return a command prefix to which everything in an existing folder is read-only."""
    mount = f'mount --bind "{folder}" "{folder}" && mount -o remount,bind,ro "{folder}" && exec "$0" "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]


def small_disk(folder: pathlib.Path, size: str) -> list[str]:
    """Return a command prefix that mounts a file system of this size (``64m``) at an existing folder, visible to the command only."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT.format(size=size, folder=folder)]
