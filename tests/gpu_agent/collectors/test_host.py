"""The host's collectors: shares, counters with their start, and files that a kernel lacks."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.platform.proctree import CPU, RECORDED, node, put, write
from legato_gpu_agent.collectors import procfs as proc_module
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.host import Cpu, Memory, Network, Pressure
from legato_gpu_agent.collectors.measurement import Attributes, Measured, Measurement
from legato_gpu_agent.collectors.procfs import Proc

NOW = 1_700_000_000_000_000_000
SECOND = 10**9
MODES = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    return node(tmp_path / "proc")


def measured(collector: Cpu | Memory | Network | Pressure, now_ns: int = NOW) -> dict[tuple[str, Attributes], Measurement]:
    """Return the measurements of a round by metric and attributes; each occurs once."""
    found: list[Measured] = list(collector.collect(now_ns))
    readings = {(each.metric, each.attributes): each for each in found if isinstance(each, Measurement)}
    assert len(readings) == len(found)
    return readings


def shares(found: dict[tuple[str, Attributes], Measurement], cpu: str = "") -> dict[str, float]:
    """Return shares by mode, of one CPU or of all."""
    out = {}
    for (metric, attributes), reading in found.items():
        names = dict(attributes)
        if metric == "system.cpu.utilization" and names.get("cpu.logical_number", "") == cpu:
            assert (reading.unit, reading.start_ns) == ("1", None)
            out[names["cpu.mode"]] = reading.value
    return out


def ticks(cpu: Sequence[int], *more: int) -> list[int]:
    """Return the counters of a CPU after this increase."""
    return [value + step for value, step in zip(cpu, [*more, *[0] * len(cpu)], strict=False)]


def test_cpu_time_is_a_counter_by_mode(tree: pathlib.Path) -> None:
    """Seconds of all CPUs together since the first round, by mode; and the processor time of the agent."""
    found = measured(Cpu(Proc(tree)))
    own = found.pop(("legato.agent.cpu.time", ()))
    assert (own.unit, own.start_ns) == ("s", NOW) and 0 < own.value <= time.process_time()
    assert set(found) == {("system.cpu.time", (("cpu.mode", mode),)) for mode in MODES}
    assert found["system.cpu.time", (("cpu.mode", "steal"),)] == Measurement("system.cpu.time", "s", 0.6, (("cpu.mode", "steal"),), NOW)


def test_shares_cover_the_time_between_two_rounds(tree: pathlib.Path) -> None:
    """They add up to 1, and stolen time is a share of that interval."""
    collector = Cpu(Proc(tree))
    assert shares(measured(collector)) == {}
    write(tree, cpus={"": ticks(CPU, 50, 0, 10, 120, 0, 0, 0, 20)})
    assert shares(measured(collector)) == {}, "after a sum that went back nothing has passed"
    write(tree, cpus={"": ticks(CPU, 100, 0, 20, 240, 0, 0, 0, 40)})
    found = shares(measured(collector))
    assert found == pytest.approx(dict(zip(MODES, (0.25, 0, 0.05, 0.6, 0, 0, 0, 0.1), strict=True)))
    assert sum(found.values()) == pytest.approx(1)
    assert shares(measured(collector)) == {}, "no time has passed"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 10**9), min_size=8, max_size=8), min_size=2, max_size=3))
def test_shares_add_up_for_any_counters(tmp_path: pathlib.Path, rounds: list[list[int]]) -> None:
    """Also if some modes go back, as iowait does: no share is below 0 or above 1, and no counter goes back."""
    collector, before = Cpu(Proc(tmp_path)), dict.fromkeys(MODES, 0.0)
    for counts in rounds:
        write(tmp_path, cpus={"": counts})
        found = measured(collector)
        now = shares(found)
        assert not now or (sum(now.values()) == pytest.approx(1) and min(now.values()) >= 0)
        times = {mode: found["system.cpu.time", (("cpu.mode", mode),)] for mode in MODES}
        assert all(times[mode].value >= before[mode] and times[mode].start_ns == NOW for mode in MODES)
        before = {mode: reading.value for mode, reading in times.items()}


def test_iowait_that_goes_back_is_not_a_restart(tree: pathlib.Path) -> None:
    """Linux sometimes lowers it: the counter keeps its value and its start."""
    collector, key = Cpu(Proc(tree)), ("system.cpu.time", (("cpu.mode", "iowait"),))
    measured(collector)
    values = []
    for step in (-10, -5, 15):
        write(tree, cpus={"": ticks([2 * value for value in CPU], 100, 0, 0, 0, step)})
        values.append(measured(collector, NOW + SECOND)[key])
    assert [(reading.value, reading.start_ns) for reading in values] == [(0.8, NOW), (0.8, NOW), (0.95, NOW)]


def test_each_cpu_is_read_in_every_tenth_round(tree: pathlib.Path) -> None:
    """Its idle and stolen shares since the tenth round before; all CPUs together in each round."""
    collector, values = Cpu(Proc(tree)), []
    for number in range(31):
        idle, busy = ticks(CPU, 0, 0, 0, 90 * number, 0, 0, 0, 10 * number), ticks(CPU, 100 * number)
        write(tree, cpus={"": ticks(idle, 100 * number), "0": idle, "1": busy})
        found = measured(collector, NOW + number * SECOND)
        assert (shares(found) != {}) == (number > 0)
        if shares(found, "0"):
            values.append(number)
            assert shares(found, "0") == pytest.approx({"idle": 0.9, "steal": 0.1}) and shares(found, "1") == {"idle": 0.0, "steal": 0.0}
    assert values == [10, 20, 30]


def test_cpus_are_added_and_removed(tree: pathlib.Path) -> None:
    """A removed CPU has no measurements, a new one from its second reading on, and the others keep their shares."""
    collector, names = Cpu(Proc(tree)), {0: "012", 10: "02", 20: "0123", 30: "0123"}
    values = {}
    for number in range(31):
        if number in names:
            cpus = {name: ticks(CPU, 0, 0, 0, 100 * number) for name in names[number]}
            write(tree, cpus={"": [len(cpus) * value for value in CPU], **cpus})
        found = measured(collector)
        values[number] = "".join(cpu for cpu in "0123" if shares(found, cpu))
        assert all(shares(found, cpu) == {"idle": 1.0, "steal": 0.0} for cpu in values[number])
    assert {number: cpus for number, cpus in values.items() if cpus} == {10: "02", 20: "012", 30: "0123"}


def test_a_node_with_a_thousand_cpus_is_bounded(tree: pathlib.Path) -> None:
    """The first 512 separately, and all of them in the sum."""
    collector = Cpu(Proc(tree))
    for number in range(11):
        if number in (0, 10):
            one = ticks(CPU, 0, 0, 0, number)
            write(tree, cpus={"": [1_000 * value for value in one], **{str(cpu): one for cpu in range(1_000)}})
        found = measured(collector)
    assert sum(1 for cpu in range(1_000) if shares(found, str(cpu))) == 512 and shares(found)["idle"] == 1


def test_pressure_is_in_seconds(tree: pathlib.Path) -> None:
    """Of some and of all tasks, for each resource, as counters."""
    found = measured(Pressure(Proc(tree)))
    values = {tuple(dict(attributes).values()): reading.value for (_, attributes), reading in found.items()}
    some_and_full = {("cpu", 1.5, 0.0), ("memory", 20e-6, 10e-6), ("io", 2.0, 1.0)}
    assert values == {(kind, name): value for name, *both in some_and_full for kind, value in zip(("some", "full"), both, strict=True)}
    name = "legato.host.pressure.time"
    attributes = (("kind", "full"), ("resource", "io"))
    assert found[name, attributes] == Measurement(name, "s", 1.0, attributes, NOW)


def test_a_kernel_without_pressure_names_the_option(tree: pathlib.Path) -> None:
    """Without any file the collector is not available, with the remedy."""
    for resource in ("cpu", "memory", "io"):
        (tree / "pressure" / resource).unlink()
    with pytest.raises(NotAvailable, match=r"psi=1 turns it on.*pressure/cpu does not exist"):
        measured(Pressure(Proc(tree)))


@pytest.mark.parametrize("missing", ["cpu", "memory", "io"])
def test_a_missing_resource_of_pressure_hides_no_other(tree: pathlib.Path, missing: str) -> None:
    """A kernel may lack the file of one resource."""
    (tree / "pressure" / missing).unlink()
    found = measured(Pressure(Proc(tree)))
    assert {dict(attributes)["resource"] for _, attributes in found} == {"cpu", "memory", "io"} - {missing}


def test_pressure_of_interrupts(tree: pathlib.Path) -> None:
    """The file exists on kernels with IRQ time accounting, and has the time of all tasks only."""
    put(tree, "pressure/irq", "full avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n")
    found = measured(Pressure(Proc(tree)))
    assert found["legato.host.pressure.time", (("kind", "full"), ("resource", "irq"))].value == 1.5 and len(found) == 7


def test_pressure_that_is_off_names_the_option(tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may have the files and reject reads."""

    def refusing(handle: int) -> bytes:
        if "/pressure/" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return whole(handle)

    whole = proc_module._read_all
    monkeypatch.setattr(proc_module, "_read_all", refusing)
    with pytest.raises(NotAvailable, match=r"psi=1 turns it on.*Operation not supported"):
        measured(Pressure(Proc(tree)))
    assert measured(Memory(Proc(tree)))


def test_memory(tree: pathlib.Path) -> None:
    """Used, free and cached add up to the total; faults and swap are counters."""
    found = measured(Memory(Proc(tree)))
    usage = {attributes: reading for (metric, attributes), reading in found.items() if metric == "system.memory.usage"}
    kib = {(("system.memory.state", state),): value for state, value in (("used", 425), ("free", 200), ("cached", 375))}
    assert {attributes: (reading.value, reading.unit, reading.start_ns) for attributes, reading in usage.items()} == {
        attributes: (1024 * value, "By", None) for attributes, value in kib.items()
    }
    operations = "system.paging.operations"
    assert found["system.paging.faults", (("system.paging.type", "major"),)].value == 5
    assert [found[operations, (("system.paging.direction", way),)].value for way in ("in", "out")] == [3, 4]
    (tree / "vmstat").unlink()
    assert set(measured(Memory(Proc(tree)))) == {("system.memory.usage", attributes) for attributes in kib}


def test_a_counter_that_goes_back_started_after_it_was_last_seen(tree: pathlib.Path) -> None:
    """Its start is the time when it was last seen, and stays while it grows; others keep theirs."""
    collector, values = Memory(Proc(tree)), []
    for number, faults in enumerate((5, 9, 9, 2, 8, 1)):
        write(tree, vmstat={"pgmajfault": faults, "pswpin": 3, "pswpout": number})
        found = measured(collector, NOW + number * SECOND)
        values.append(found["system.paging.faults", (("system.paging.type", "major"),)])
        assert found["system.paging.operations", (("system.paging.direction", "out"),)].start_ns == NOW
    starts = [((reading.start_ns or 0) - NOW) // SECOND for reading in values]
    assert [*zip(starts, [reading.value for reading in values], strict=True)] == [
        (0, 5),
        (0, 9),
        (0, 9),
        (2, 2),
        (2, 8),
        (4, 1),
    ]


def test_the_network(tree: pathlib.Path) -> None:
    """TCP segments sent and retransmitted, and for each interface except loopback bytes, errors and drops in both directions."""
    found = measured(Network(Proc(tree)))
    assert found.pop(("legato.host.tcp.sent", ())) == Measurement("legato.host.tcp.sent", "{segment}", 1_000, (), NOW)
    assert found.pop(("legato.host.tcp.retransmitted", ())).value == 7
    expected = {}
    for interface, base in (("eth0", 100), ("ib0", 200)):
        for way, first in (("receive", base), ("transmit", base + 8)):
            where = (("network.interface.name", interface), ("network.io.direction", way))
            expected["system.network.io", where] = first
            expected["system.network.errors", where] = first + 2
            expected["system.network.packet.dropped", where] = first + 3
    assert {key: reading.value for key, reading in found.items()} == expected


def test_incomplete_network_files(tree: pathlib.Path) -> None:
    """A kernel without TCP counters has the interfaces; a short line is skipped; of a thousand interfaces 64 are read."""
    put(tree, "net/snmp", "Ip: Forwarding\nIp: 2\n")
    write(tree, interfaces={"lo": range(16), "short": range(11), **{f"veth{number}": range(16) for number in range(1_000)}})
    found = measured(Network(Proc(tree)))
    names = {dict(attributes)["network.interface.name"] for _, attributes in found}
    assert names == {f"veth{number}" for number in range(62)} and len(found) == 62 * 6
    (tree / "net/dev").unlink()
    with pytest.raises(NotAvailable, match="net/dev does not exist"):
        measured(Network(Proc(tree)))


def _all(proc: Proc) -> Iterator[Measurement]:
    for collector in (Cpu(proc), Memory(proc), Network(proc), Pressure(proc)):
        # Not every kernel that runs the tests has pressure.
        with contextlib.suppress(NotAvailable):
            for number in range(11):
                yield from measured(collector, NOW + number).values()


@pytest.mark.parametrize("root", [RECORDED, pathlib.Path("/proc")])
def test_every_measurement_is_valid(root: pathlib.Path) -> None:
    """On a recorded machine and on this one: names with dots, sorted attributes, values not below 0, and starts of counters."""
    readings = list(_all(Proc(root)))
    assert len({reading.metric for reading in readings}) >= (10 if root == RECORDED else 7)
    for reading in readings:
        keys = [key for key, _ in reading.attributes]
        assert keys == sorted(keys) and not any("__" in key for key in keys) and "__" not in reading.metric
        assert reading.value >= 0 and reading.unit and (reading.start_ns is None or NOW <= reading.start_ns <= NOW + 10)
        gauge = reading.metric in ("system.cpu.utilization", "system.memory.usage")
        assert gauge == (reading.start_ns is None)
