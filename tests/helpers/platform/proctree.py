"""Writes a /proc for tests: the files of a node with given numbers, in Linux's format.

`node` writes a complete node, `write` changes parts of it. A call with processes replaces all processes.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["RECORDED", "Process", "node", "put", "write"]

RECORDED = pathlib.Path(__file__).parents[2] / "gpu_agent" / "data" / "proc"
"""Files recorded on a real machine."""
CPU = (400, 10, 100, 9_000, 40, 0, 20, 30, 7, 7)
"""Ticks of 10 ms: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice; user and nice include the guest times."""
_SOCKET = "{place:4d}: {address}:{port:04X} {far}:0000 {state} 00000000:00000000 00:00000000 00000000  1000 0 {inode} 1 0 100 0 0 10 0\n"
_ADDRESSES = {"tcp": ("0100007F", "00000000"), "tcp6": ("0" * 24 + "01000000", "0" * 32)}
_DEV = "Inter-|   Receive                            |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes …\n"


@dataclass(frozen=True)
class Process:
    """``threads``: for each thread the ns that it ran and that it waited for a CPU; ``sockets``: inodes of its open sockets; ``files``: its
    other open files; ``network``: its network namespace; ``listening``: inodes by port there."""

    pid: int
    parent: int = 1
    name: str = "python3"
    threads: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    sockets: Sequence[int] = ()
    files: Sequence[pathlib.Path] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    network: str = ""
    listening: Mapping[int, int] = field(default_factory=dict)


def node(root: pathlib.Path) -> pathlib.Path:
    """Write a node with two CPUs, two interfaces, and no process."""
    memory = {"MemTotal": 1_000, "MemFree": 200, "MemAvailable": 600, "Buffers": 50, "Cached": 300, "SReclaimable": 25}
    write(root, cpus={"": [2 * ticks for ticks in CPU], "0": CPU, "1": CPU}, memory_kib=memory)
    write(root, vmstat={"nr_free_pages": 50, "pswpin": 3, "pswpout": 4, "pgmajfault": 5}, tcp={"OutSegs": 1_000, "RetransSegs": 7})
    write(root, pressure_us={"cpu": (1_500_000, 0), "memory": (20, 10), "io": (2_000_000, 1_000_000)})
    write(root, interfaces={"lo": range(16), "eth0": range(100, 116), "ib0": range(200, 216)}, listening={})
    return root


def write(
    root: pathlib.Path,
    *,
    cpus: Mapping[str, Iterable[int]] | None = None,
    pressure_us: Mapping[str, tuple[int, int]] | None = None,
    memory_kib: Mapping[str, int] | None = None,
    vmstat: Mapping[str, int] | None = None,
    tcp: Mapping[str, int] | None = None,
    interfaces: Mapping[str, Iterable[int]] | None = None,
    listening: Mapping[int, int] | None = None,
    listening6: Mapping[int, int] | None = None,
    processes: Sequence[Process] | None = None,
) -> None:
    """Write the files of the given values. ``pressure_us``: of some and of all tasks; ``listening``: inodes by port."""
    if cpus is not None:
        lines = "".join(f"cpu{name}{'' if name else ' '} {_words(ticks)}\n" for name, ticks in cpus.items())
        put(root, "stat", lines + "intr 60 0 0 1\nctxt 154\nprocesses 382\nprocs_running 1\nsoftirq 40 0 4\n")
    for resource, (some, full) in (pressure_us or {}).items():
        lines = "".join(f"{kind} avg10=0.10 avg60=0.02 avg300=0.00 total={us}\n" for kind, us in (("some", some), ("full", full)))
        put(root, f"pressure/{resource}", lines)
    if memory_kib is not None:
        put(root, "meminfo", "".join(f"{name}:{kib:>15} kB\n" for name, kib in memory_kib.items()) + "HugePages_Total:       3\n")
    if vmstat is not None:
        put(root, "vmstat", "".join(f"{name} {count}\n" for name, count in vmstat.items()))
    if tcp is not None:
        counters = {"RtoAlgorithm": 1, "MaxConn": -1, **tcp}
        put(root, "net/snmp", f"Ip: Forwarding\nIp: 2\nTcp: {_words(counters)}\nTcp: {_words(counters.values())}\nUdp: NoPorts\nUdp: 9\n")
    if interfaces is not None:
        put(root, "net/dev", _DEV + "".join(f"{name:>6}: {_words(counters)}\n" for name, counters in interfaces.items()))
    for name, ports in (("tcp", listening), ("tcp6", listening6)):
        if ports is not None:
            put(root, f"net/{name}", _sockets(ports, *_ADDRESSES[name]))
    if processes is not None:
        _processes(root, processes)


def put(root: pathlib.Path, name: str, text: str) -> None:
    """Write a file with this text."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


def _words(values: Iterable[object]) -> str:
    return " ".join(map(str, values))


def _sockets(ports: Mapping[int, int], address: str, anywhere: str) -> str:
    """Return listening sockets, then connections of their ports, as a server has, and one connection of a client."""
    lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"]
    connections = {**{port: inode + 900_000 for port, inode in ports.items()}, 50_123: 899_999}
    for state, of_state in (("0A", ports), ("01", connections)):
        for port, inode in of_state.items():
            place = len(lines) - 1
            lines.append(_SOCKET.format(place=place, address=address, port=port, far=anywhere, state=state, inode=inode))
    return "".join(lines)


def _processes(root: pathlib.Path, processes: Sequence[Process]) -> None:
    for folder in root.iterdir():
        if folder.name.isdecimal():
            shutil.rmtree(folder)
    for process in processes:
        here = f"{process.pid}"
        put(root, f"{here}/stat", f"{process.pid} ({process.name}) S {process.parent} {process.pid} 0 0 -1 4194560 12 0 0 0 5 6\n")
        for thread, (ran_ns, waited_ns) in process.threads.items():
            put(root, f"{here}/task/{thread}/schedstat", f"{ran_ns} {waited_ns} 17\n")
        files = root / here / "fd"
        files.mkdir(parents=True)
        (files / "0").symlink_to("/dev/null")
        for place, inode in enumerate(process.sockets):
            (files / str(3 + place)).symlink_to(f"socket:[{inode}]")
        for place, path in enumerate(process.files):
            (files / str(100 + place)).symlink_to(path)
        put(root, f"{here}/environ", "".join(f"{name}={value}\0" for name, value in process.environ.items()))
        if process.network:
            (root / here / "ns").mkdir()
            (root / here / "ns" / "net").symlink_to(f"net:[{process.network}]")
            put(root, f"{here}/net/tcp", _sockets(process.listening, *_ADDRESSES["tcp"]))
