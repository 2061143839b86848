"""Small disks for single processes, to be filled to the last byte."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from functools import cache

__all__ = ["can_mount", "small_disk"]

_MOUNT = 'mount -t tmpfs -o size={size} tmpfs "{folder}" && exec "$0" "$@"'


@cache
def can_mount() -> bool:
    """Whether this user may mount a small disk of its own (a container may forbid it)."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def small_disk(folder: pathlib.Path, size: str) -> list[str]:
    """What runs a command with a disk of this size (as in ``64m``) at the folder, which exists; nobody else sees it."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT.format(size=size, folder=folder)]
