"""Reads and parses files of Linux's /proc below any root, without state.

Reading is separate from use, so recorded trees can be read like live ones (as with node_exporter's ``--path.procfs``). Kernel documents:
Documentation/filesystems/proc.rst, accounting/psi.rst, scheduler/sched-stats.rst.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from legato_gpu_agent.collectors.base import NotAvailable

__all__ = ["Listener", "Proc"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MODES = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")
_LISTEN = "0A"
_BY_LOOPBACK = ("", "127.0.0.1")
_TASKS_MAX = 8_192
_TEXT_MAX, _READ_BYTES = 4 * 2**20, 65_536


class Listener(NamedTuple):
    """A listening TCP socket: its inode, and its address ('' for all addresses of the host)."""

    inode: int
    address: str


class Proc:
    """The tree at ``root``, usually /proc."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root

    def text(self, name: str) -> str:
        """Return a file's text, up to 4 MiB of complete lines. Raises ``NotAvailable`` for a file that is missing or not readable."""
        try:
            # System calls, because Python's files cost three times as much, and an engine has hundreds of threads with one file each.
            handle = os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = _read_all(handle).decode("utf-8", "replace")
            finally:
                os.close(handle)
        except FileNotFoundError:
            raise NotAvailable(f"{self._root}/{name} does not exist") from None
        except PermissionError:
            raise NotAvailable(f"this user may not read {self._root}/{name}") from None
        except ProcessLookupError:
            raise NotAvailable(f"{self._root}/{name}: its process has ended") from None
        # The last line of a text beyond the bound is incomplete.
        return text if len(text) < _TEXT_MAX else text[: text.rfind("\n") + 1]

    def boot_id(self) -> str:
        """Return the id of the host's current boot, which the SDK sends with its clock; '' if it cannot be read."""
        try:
            # Not through `text`: for a file of /proc/sys the kernel allocates the requested size.
            return (self._root / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def cpu_seconds(self, each: bool = True) -> dict[str, dict[str, float]]:
        """Return seconds by mode, of all CPUs together ("") and, with ``each``, of every CPU ("0", "1", …)."""
        out = {}
        lines = self.text("stat").splitlines()
        for line in lines if each else lines[:1]:
            name, *values = line.split()
            if name.startswith("cpu"):
                ticks = [int(value) for value in values[: len(_MODES)]]
                out[name[3:]] = {mode: count / _TICKS_PER_S for mode, count in zip(_MODES, ticks, strict=False)}
        return out

    def pressure_seconds(self, resource: str) -> dict[str, float]:
        """Return the seconds since boot in which ``some`` or all (``full``) tasks waited for a resource: cpu, memory, io or irq."""
        out = {}
        for line in self.text(f"pressure/{resource}").splitlines():
            kind, *fields = line.split()
            values = dict(field.split("=", 1) for field in fields)
            out[kind] = int(values["total"]) / 1e6
        return out

    def memory_bytes(self) -> dict[str, int]:
        """Return /proc/meminfo in bytes, under its names."""
        out = {}
        for line in self.text("meminfo").splitlines():
            name, _, rest = line.partition(":")
            number, *unit = rest.split()
            out[name] = int(number) * (1024 if unit else 1)
        return out

    def counters(self, name: str, wanted: Collection[str]) -> dict[str, int]:
        """Return the ``wanted`` values of a file of names and numbers, such as /proc/vmstat."""
        lines = (line.partition(" ") for line in self.text(name).splitlines())
        return {key: int(value) for key, _, value in lines if key in wanted}

    def protocol(self, name: str, protocol: str) -> Mapping[str, int]:
        """Return the counters of one protocol in /proc/net/snmp or netstat: a line of names, then one of numbers."""
        lines = [line.split() for line in self.text(name).splitlines() if line.startswith(f"{protocol}:")]
        return {key: int(value) for key, value in list(zip(*lines, strict=True))[1:]} if len(lines) == 2 else {}

    def interfaces(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the network interfaces, each with the 16 counters of /proc/net/dev."""
        for line in self.text("net/dev").splitlines()[2:]:
            name, _, rest = line.partition(":")
            yield name.strip(), [int(value) for value in rest.split()]

    def listening(self, place: str = "") -> dict[int, int]:
        """Return the listening TCP ports, each with the inode of its socket. ``place``: "PID/" for the network namespace of a process."""
        return {port: listener.inode for port, listener in self.listeners(place).items()}

    def listeners(self, place: str = "") -> dict[int, Listener]:
        """Return the listening TCP ports, each with the socket that a client reaches through loopback, or else with the first one."""
        out: dict[int, Listener] = {}
        for name in (f"{place}net/tcp", f"{place}net/tcp6"):
            with contextlib.suppress(NotAvailable):
                for line in self.text(name).splitlines()[1:]:
                    with contextlib.suppress(ValueError, IndexError):
                        fields = line.split()
                        if fields[3] == _LISTEN:
                            address, _, port = fields[1].rpartition(":")
                            _prefer(out, int(port, 16), Listener(int(fields[9]), _address(address)))
        return out

    def pids(self) -> list[int]:
        """Return all visible processes."""
        try:
            return [int(entry.name) for entry in os.scandir(self._root) if entry.name.isdecimal()]
        except OSError:
            return []

    def holds(self, pid: int, inode: int) -> bool:
        """Return whether this process has this socket open; false if its files are not visible."""
        wanted = f"socket:[{inode}]"
        try:
            with os.scandir(self._root / str(pid) / "fd") as entries:
                return any(_link(entry.path) == wanted for entry in entries)
        except OSError:
            return False

    def holds_file(self, pid: int, name: str, file_id: tuple[int, int]) -> bool:
        """Return whether this process has the file with this name, device and inode open; false if its files are not visible."""
        try:
            with os.scandir(self._root / str(pid) / "fd") as entries:
                # Only a file of the name is looked at: a file of a network may not answer.
                return any(os.path.basename(_link(entry.path)) == name and _file_id(entry.path) == file_id for entry in entries)
        except OSError:
            return False

    def network(self, pid: int) -> str:
        """Return the network namespace of a process; '' if it is not visible."""
        return _link(f"{self._root}/{pid}/ns/net")

    def variable(self, pid: int, name: str) -> str:
        """Return a variable of the environment with which a process started; '' if it is not set or not visible."""
        try:
            text = self.text(f"{pid}/environ")
        except NotAvailable:
            return ""
        return next((each.partition("=")[2] for each in text.split("\0") if each.startswith(f"{name}=")), "")

    def own_pid(self) -> int | None:
        """Return the number of this process in this tree, which may be that of another PID namespace; ``None`` if it has none."""
        own = _link(f"{self._root}/self")
        return int(own) if own.isdecimal() else None

    def command(self, pid: int) -> str:
        """Return the name of a process, of which the kernel keeps 15 bytes; '' for one that has ended."""
        try:
            return self.text(f"{pid}/stat").partition("(")[2].rpartition(")")[0]
        except NotAvailable:
            return ""

    def parent(self, pid: int) -> int | None:
        """Return the parent's PID; ``None`` for a process that has ended."""
        try:
            return int(self._stat(pid)[1])
        except (NotAvailable, ValueError, IndexError):
            return None

    def threads_ns(self, pid: int) -> dict[str, tuple[int, int]]:
        """Return for each thread the time that it ran and the time that it was ready and waited for a CPU, in ns.

        Raises ``NotAvailable`` for a process that has ended, and on a kernel without schedstat.
        """
        out: dict[str, tuple[int, int]] = {}
        for entry in self._tasks(pid):
            with contextlib.suppress(NotAvailable, ValueError):
                ran, waited, _ = self.text(f"{pid}/task/{entry}/schedstat").split()
                out[entry] = int(ran), int(waited)
        if not out:
            raise NotAvailable(f"no schedstat of process {pid}: it has ended, or the kernel has none")
        return out

    def _tasks(self, pid: int) -> list[str]:
        try:
            return os.listdir(self._root / str(pid) / "task")[:_TASKS_MAX]
        except OSError:
            raise NotAvailable(f"process {pid} has ended") from None

    def _stat(self, pid: int) -> list[str]:
        """Return the fields of stat after the name of the command, which may contain any character."""
        return self.text(f"{pid}/stat").rpartition(")")[2].split()


def _prefer(listeners: dict[int, Listener], port: int, new: Listener) -> None:
    known = listeners.get(port)
    if known is None or (new.address in _BY_LOOPBACK and known.address not in _BY_LOOPBACK):
        listeners[port] = new


def _address(written: str) -> str:
    """Parse an address of /proc/net: 32-bit words in this machine's byte order; '' for all addresses of the host.

    Raises ``ValueError`` for an invalid address.
    """
    if len(written) % 8:
        raise ValueError(f"{written!r} is not an address: expected whole words of 8 hexadecimal digits")
    words = (written[at : at + 8] for at in range(0, len(written), 8))
    address = ipaddress.ip_address(b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words))
    plain = getattr(address, "ipv4_mapped", None) or address
    return "" if plain.is_unspecified else str(plain)


def _read_all(handle: int) -> bytes:
    """Read a file up to a bound; the kernel returns a table in several chunks."""
    chunks, left = [], _TEXT_MAX
    while left > 0 and (chunk := os.read(handle, min(left, _READ_BYTES))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
