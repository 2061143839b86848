"""Linux's /proc, read under any root: what a line of it means, apart from what is done with it.

One idea: reading and meaning are separate, so recorded trees are read like live ones (node_exporter's ``--path.procfs``). Kernel documents:
Documentation/filesystems/proc.rst, accounting/psi.rst, scheduler/sched-stats.rst. It keeps nothing.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping

from legato_gpu_agent.collectors import Absent

__all__ = ["Proc"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MODES = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")
_LISTEN = "0A"
_TASKS_MAX = 8_192
_TEXT_MAX, _PIECE = 4 * 2**20, 65_536


class Proc:
    """The tree at ``root``, usually /proc."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root

    def text(self, name: str) -> str:
        """A file's text. Raises ``Absent`` where it is not there or not ours to read."""
        try:
            # By the system's calls: Python's files cost three times as much, and an engine has hundreds of threads with a file each.
            handle = os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = _whole(handle).decode("ascii", "replace")
            finally:
                os.close(handle)
        except FileNotFoundError:
            raise Absent(f"{self._root}/{name} is not there") from None
        except PermissionError:
            raise Absent(f"{self._root}/{name} may not be read by this user") from None
        except ProcessLookupError:
            raise Absent(f"{self._root}/{name}: its process has gone") from None
        # Of what is too long the last line would be half.
        return text if len(text) < _TEXT_MAX else text[: text.rfind("\n") + 1]

    def boot_id(self) -> str:
        """Which boot of the host this is, as the SDK tells it with its clock; '' where nobody says."""
        try:
            # Not by `text`: of a file of /proc/sys the kernel allocates as much as is asked for.
            return (self._root / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def cpu_seconds(self, each: bool = True) -> dict[str, dict[str, float]]:
        """Seconds by mode, of all CPUs ("") and, unless that is enough, of each ("0", "1", …)."""
        out = {}
        lines = self.text("stat").splitlines()
        for line in lines if each else lines[:1]:
            name, *values = line.split()
            if name.startswith("cpu"):
                ticks = [int(value) for value in values[: len(_MODES)]]
                out[name[3:]] = {mode: count / _TICKS_PER_S for mode, count in zip(_MODES, ticks, strict=False)}
        return out

    def pressure_seconds(self, resource: str) -> dict[str, float]:
        """Seconds in which some, and all, tasks waited for cpu, memory or io, since the start."""
        out = {}
        for line in self.text(f"pressure/{resource}").splitlines():
            kind, *fields = line.split()
            values = dict(field.split("=", 1) for field in fields)
            out[kind] = int(values["total"]) / 1e6
        return out

    def memory_bytes(self) -> dict[str, int]:
        """/proc/meminfo in bytes, by its own names."""
        out = {}
        for line in self.text("meminfo").splitlines():
            name, _, rest = line.partition(":")
            number, *unit = rest.split()
            out[name] = int(number) * (1024 if unit else 1)
        return out

    def counters(self, name: str, wanted: Collection[str]) -> dict[str, int]:
        """Those that are wanted of a file of names and numbers, like /proc/vmstat."""
        lines = (line.partition(" ") for line in self.text(name).splitlines())
        return {key: int(value) for key, _, value in lines if key in wanted}

    def protocol(self, name: str, protocol: str) -> Mapping[str, int]:
        """One protocol's counters of /proc/net/snmp or netstat: a line of names, then one of numbers."""
        lines = [line.split() for line in self.text(name).splitlines() if line.startswith(f"{protocol}:")]
        return {key: int(value) for key, value in list(zip(*lines, strict=True))[1:]} if len(lines) == 2 else {}

    def interfaces(self) -> Iterator[tuple[str, list[int]]]:
        """Network interfaces, each with the 16 counters of /proc/net/dev."""
        for line in self.text("net/dev").splitlines()[2:]:
            name, _, rest = line.partition(":")
            yield name.strip(), [int(value) for value in rest.split()]

    def listening(self) -> dict[int, int]:
        """TCP ports that somebody listens on, each with the inode of its socket."""
        out: dict[int, int] = {}
        for name in ("net/tcp", "net/tcp6"):
            with contextlib.suppress(Absent):
                for line in self.text(name).splitlines()[1:]:
                    with contextlib.suppress(ValueError, IndexError):
                        fields = line.split()
                        if fields[3] == _LISTEN:
                            out.setdefault(int(fields[1].rpartition(":")[2], 16), int(fields[9]))
        return out

    def pids(self) -> list[int]:
        """All processes that can be seen."""
        try:
            return [int(entry.name) for entry in os.scandir(self._root) if entry.name.isdecimal()]
        except OSError:
            return []

    def holds(self, pid: int, inode: int) -> bool:
        """Whether this process has this socket open; false where its files are not ours to see."""
        wanted = f"socket:[{inode}]"
        try:
            with os.scandir(self._root / str(pid) / "fd") as entries:
                return any(_link(entry.path) == wanted for entry in entries)
        except OSError:
            return False

    def parent(self, pid: int) -> int | None:
        """The parent's pid; ``None`` when the process has gone."""
        try:
            return int(self._stat(pid)[1])
        except (Absent, ValueError, IndexError):
            return None

    def process_seconds(self, pid: int) -> tuple[float, float, int]:
        """Seconds of CPU, seconds that runnable threads waited for one, and how many threads. Raises ``Absent`` when it has gone."""
        ran_ns = waited_ns = threads = 0
        for entry in self._tasks(pid):
            with contextlib.suppress(Absent, ValueError):
                ran, waited, _ = self.text(f"{pid}/task/{entry}/schedstat").split()
                ran_ns, waited_ns, threads = ran_ns + int(ran), waited_ns + int(waited), threads + 1
        if not threads:
            raise Absent(f"no schedstat of process {pid}: it has gone, or the kernel keeps none")
        return ran_ns / 1e9, waited_ns / 1e9, threads

    def _tasks(self, pid: int) -> list[str]:
        try:
            return os.listdir(self._root / str(pid) / "task")[:_TASKS_MAX]
        except OSError:
            raise Absent(f"process {pid} has gone") from None

    def _stat(self, pid: int) -> list[str]:
        """The fields of stat after the command's name, which may hold anything."""
        return self.text(f"{pid}/stat").rpartition(")")[2].split()


def _whole(handle: int) -> bytes:
    """What a file has, up to a bound; the kernel gives a table in pieces."""
    pieces, left = [], _TEXT_MAX
    while left > 0 and (piece := os.read(handle, min(left, _PIECE))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
