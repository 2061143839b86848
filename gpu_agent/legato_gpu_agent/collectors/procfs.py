"""Linux's /proc, read under any root: what a line of it means, apart from what is done with it.

One idea: reading and meaning are separate, so recorded trees are read like live ones (node_exporter's ``--path.procfs``). Kernel documents:
Documentation/filesystems/proc.rst, accounting/psi.rst, scheduler/sched-stats.rst. It keeps nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from legato_gpu_agent.collectors import Absent

__all__ = ["Listener", "Proc"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MODES = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")
_LISTEN = "0A"
_BY_LOOPBACK = ("", "127.0.0.1")
_TASKS_MAX = 8_192
_TEXT_MAX, _PIECE = 4 * 2**20, 65_536


class Listener(NamedTuple):
    """A socket that somebody listens on: its inode, and at which address; '' for all of the host's."""

    inode: int
    address: str


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
        return {port: listener.inode for port, listener in self.listeners().items()}

    def listeners(self) -> dict[int, Listener]:
        """TCP ports that somebody listens on, each with the socket that a client on this host reaches by loopback, else with the first."""
        out: dict[int, Listener] = {}
        for name in ("net/tcp", "net/tcp6"):
            with contextlib.suppress(Absent):
                for line in self.text(name).splitlines()[1:]:
                    with contextlib.suppress(ValueError, IndexError):
                        fields = line.split()
                        if fields[3] == _LISTEN:
                            address, _, port = fields[1].rpartition(":")
                            _prefer(out, int(port, 16), Listener(int(fields[9]), _address(address)))
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

    def command(self, pid: int) -> str:
        """What a process is called, of which the kernel keeps 15 bytes; '' when it has gone."""
        try:
            return self.text(f"{pid}/stat").partition("(")[2].rpartition(")")[0]
        except Absent:
            return ""

    def parent(self, pid: int) -> int | None:
        """The parent's pid; ``None`` when the process has gone."""
        try:
            return int(self._stat(pid)[1])
        except (Absent, ValueError, IndexError):
            return None

    def threads_ns(self, pid: int) -> dict[str, tuple[int, int]]:
        """Of each thread, how long it ran and how long it was ready and waited for a CPU. Raises ``Absent`` when the process has gone."""
        out: dict[str, tuple[int, int]] = {}
        for entry in self._tasks(pid):
            with contextlib.suppress(Absent, ValueError):
                ran, waited, _ = self.text(f"{pid}/task/{entry}/schedstat").split()
                out[entry] = int(ran), int(waited)
        if not out:
            raise Absent(f"no schedstat of process {pid}: it has gone, or the kernel keeps none")
        return out

    def _tasks(self, pid: int) -> list[str]:
        try:
            return os.listdir(self._root / str(pid) / "task")[:_TASKS_MAX]
        except OSError:
            raise Absent(f"process {pid} has gone") from None

    def _stat(self, pid: int) -> list[str]:
        """The fields of stat after the command's name, which may hold anything."""
        return self.text(f"{pid}/stat").rpartition(")")[2].split()


def _prefer(listeners: dict[int, Listener], port: int, new: Listener) -> None:
    known = listeners.get(port)
    if known is None or (new.address in _BY_LOOPBACK and known.address not in _BY_LOOPBACK):
        listeners[port] = new


def _address(written: str) -> str:
    """An address as it is written in /proc/net: words of 32 bits, each a number of this machine's byte order. '' is all of the host's.

    Raises ``ValueError`` for what is none.
    """
    if len(written) % 8:
        raise ValueError(f"{written!r} is no address: its words are not whole")
    words = (written[at : at + 8] for at in range(0, len(written), 8))
    address = ipaddress.ip_address(b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words))
    plain = getattr(address, "ipv4_mapped", None) or address
    return "" if plain.is_unspecified else str(plain)


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
