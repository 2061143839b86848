"""The host's collectors: shares that add up, counters that know since when they count, and what a kernel does not have."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.platform.proctree import CPU, RECORDED, node, put, write
from legato_gpu_agent.collectors import Absent
from legato_gpu_agent.collectors import procfs as proc_module
from legato_gpu_agent.collectors.host import Cpu, Memory, Network, Pressure
from legato_gpu_agent.collectors.measurement import Attributes, Found, Reading
from legato_gpu_agent.collectors.procfs import Proc

NOW = 1_700_000_000_000_000_000
SECOND = 10**9
MODES = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    return node(tmp_path / "proc")


def asked(collector: Cpu | Memory | Network | Pressure, now_ns: int = NOW) -> dict[tuple[str, Attributes], Reading]:
    """What a round finds, each reading once."""
    found: list[Found] = list(collector.collect(now_ns))
    readings = {(each.metric, each.attributes): each for each in found if isinstance(each, Reading)}
    assert len(readings) == len(found)
    return readings


def shares(found: dict[tuple[str, Attributes], Reading], cpu: str = "") -> dict[str, float]:
    """By mode, of one CPU or of all."""
    out = {}
    for (metric, attributes), reading in found.items():
        names = dict(attributes)
        if metric == "system.cpu.utilization" and names.get("cpu.logical_number", "") == cpu:
            assert (reading.unit, reading.since_ns) == ("1", 0)
            out[names["cpu.mode"]] = reading.value
    return out


def ticks(cpu: Sequence[int], *more: int) -> list[int]:
    """The counters of a CPU that went on by so much."""
    return [value + step for value, step in zip(cpu, [*more, *[0] * len(cpu)], strict=False)]


def test_cpu_time_is_a_counter_by_mode(tree: pathlib.Path) -> None:
    """Seconds of all CPUs since the first look, and of no single one; each by a mode."""
    found = asked(Cpu(Proc(tree)))
    assert set(found) == {("system.cpu.time", (("cpu.mode", mode),)) for mode in MODES}
    assert found["system.cpu.time", (("cpu.mode", "steal"),)] == Reading("system.cpu.time", "s", 0.6, (("cpu.mode", "steal"),), NOW)


def test_shares_are_of_the_time_between_two_rounds(tree: pathlib.Path) -> None:
    """They add up to one, whatever came before, and what the hypervisor stole is its share of that second."""
    collector = Cpu(Proc(tree))
    assert shares(asked(collector)) == {}
    write(tree, cpus={"": ticks(CPU, 50, 0, 10, 120, 0, 0, 0, 20)})
    assert shares(asked(collector)) == {}, "after a sum that went back nothing has passed"
    write(tree, cpus={"": ticks(CPU, 100, 0, 20, 240, 0, 0, 0, 40)})
    found = shares(asked(collector))
    assert found == pytest.approx(dict(zip(MODES, (0.25, 0, 0.05, 0.6, 0, 0, 0, 0.1), strict=True)))
    assert sum(found.values()) == pytest.approx(1)
    assert shares(asked(collector)) == {}, "no time has passed"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 10**9), min_size=8, max_size=8), min_size=2, max_size=3))
def test_shares_add_up_whatever_the_kernel_says(tmp_path: pathlib.Path, rounds: list[list[int]]) -> None:
    """Also where some modes go back, as iowait does: no share is below 0 or above 1, and no counter of time goes back."""
    collector, before = Cpu(Proc(tmp_path)), dict.fromkeys(MODES, 0.0)
    for counts in rounds:
        write(tmp_path, cpus={"": counts})
        found = asked(collector)
        now = shares(found)
        assert not now or (sum(now.values()) == pytest.approx(1) and min(now.values()) >= 0)
        times = {mode: found["system.cpu.time", (("cpu.mode", mode),)] for mode in MODES}
        assert all(times[mode].value >= before[mode] and times[mode].since_ns == NOW for mode in MODES)
        before = {mode: reading.value for mode, reading in times.items()}


def test_iowait_that_goes_back_is_no_restart(tree: pathlib.Path) -> None:
    """Linux takes some of it back now and then: the counter stands still, and counts since when it did."""
    collector, key = Cpu(Proc(tree)), ("system.cpu.time", (("cpu.mode", "iowait"),))
    asked(collector)
    told = []
    for step in (-10, -5, 15):
        write(tree, cpus={"": ticks([2 * value for value in CPU], 100, 0, 0, 0, step)})
        told.append(asked(collector, NOW + SECOND)[key])
    assert [(reading.value, reading.since_ns) for reading in told] == [(0.8, NOW), (0.8, NOW), (0.95, NOW)]


def test_each_cpu_is_told_every_tenth_round(tree: pathlib.Path) -> None:
    """How idle it was and what was stolen of it since the tenth round before; all CPUs together are told in each."""
    collector, told = Cpu(Proc(tree)), []
    for number in range(31):
        idle, busy = ticks(CPU, 0, 0, 0, 90 * number, 0, 0, 0, 10 * number), ticks(CPU, 100 * number)
        write(tree, cpus={"": ticks(idle, 100 * number), "0": idle, "1": busy})
        found = asked(collector, NOW + number * SECOND)
        assert (shares(found) != {}) == (number > 0)
        if shares(found, "0"):
            told.append(number)
            assert shares(found, "0") == pytest.approx({"idle": 0.9, "steal": 0.1}) and shares(found, "1") == {"idle": 0.0, "steal": 0.0}
    assert told == [10, 20, 30]


def test_cpus_come_and_go(tree: pathlib.Path) -> None:
    """One that is unplugged is told no more, one that is new from its second look on, and those that stay keep their shares."""
    collector, names = Cpu(Proc(tree)), {0: "012", 10: "02", 20: "0123", 30: "0123"}
    told = {}
    for number in range(31):
        if number in names:
            cpus = {name: ticks(CPU, 0, 0, 0, 100 * number) for name in names[number]}
            write(tree, cpus={"": [len(cpus) * value for value in CPU], **cpus})
        found = asked(collector)
        told[number] = "".join(cpu for cpu in "0123" if shares(found, cpu))
        assert all(shares(found, cpu) == {"idle": 1.0, "steal": 0.0} for cpu in told[number])
    assert {number: cpus for number, cpus in told.items() if cpus} == {10: "02", 20: "012", 30: "0123"}


def test_a_node_of_a_thousand_cpus_is_bounded(tree: pathlib.Path) -> None:
    """The first 512 are told one by one, all of them in the sum."""
    collector = Cpu(Proc(tree))
    for number in range(11):
        if number in (0, 10):
            one = ticks(CPU, 0, 0, 0, number)
            write(tree, cpus={"": [1_000 * value for value in one], **{str(cpu): one for cpu in range(1_000)}})
        found = asked(collector)
    assert sum(1 for cpu in range(1_000) if shares(found, str(cpu))) == 512 and shares(found)["idle"] == 1


def test_pressure_is_told_in_seconds(tree: pathlib.Path) -> None:
    """Of some tasks and of all, of each resource, as counters."""
    found = asked(Pressure(Proc(tree)))
    told = {tuple(dict(attributes).values()): reading.value for (_, attributes), reading in found.items()}
    some_and_full = {("cpu", 1.5, 0.0), ("memory", 20e-6, 10e-6), ("io", 2.0, 1.0)}
    assert told == {(kind, name): value for name, *both in some_and_full for kind, value in zip(("some", "full"), both, strict=True)}
    name = "legato.host.pressure.time"
    attributes = (("kind", "full"), ("resource", "io"))
    assert found[name, attributes] == Reading(name, "s", 1.0, attributes, NOW)


def test_a_kernel_without_pressure_says_how_to_turn_it_on(tree: pathlib.Path) -> None:
    """Where there are no such files, that is absent, with what to do."""
    for resource in ("cpu", "memory", "io"):
        (tree / "pressure" / resource).unlink()
    with pytest.raises(Absent, match=r"psi=1 turns it on.*pressure/cpu is not there"):
        asked(Pressure(Proc(tree)))


def test_pressure_that_is_turned_off_says_how_to_turn_it_on(tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may show the files and refuse to read them."""

    def refusing(handle: int) -> bytes:
        if "/pressure/" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return whole(handle)

    whole = proc_module._whole
    monkeypatch.setattr(proc_module, "_whole", refusing)
    with pytest.raises(Absent, match=r"psi=1 turns it on.*Operation not supported"):
        asked(Pressure(Proc(tree)))
    assert asked(Memory(Proc(tree)))


def test_memory(tree: pathlib.Path) -> None:
    """What is used, free and cached adds up to what there is; faults and swapping are counters."""
    found = asked(Memory(Proc(tree)))
    usage = {attributes: reading for (metric, attributes), reading in found.items() if metric == "system.memory.usage"}
    kib = {(("system.memory.state", state),): value for state, value in (("used", 425), ("free", 200), ("cached", 375))}
    assert {attributes: (reading.value, reading.unit, reading.since_ns) for attributes, reading in usage.items()} == {
        attributes: (1024 * value, "By", 0) for attributes, value in kib.items()
    }
    operations = "system.paging.operations"
    assert found["system.paging.faults", (("system.paging.type", "major"),)].value == 5
    assert [found[operations, (("system.paging.direction", way),)].value for way in ("in", "out")] == [3, 4]
    (tree / "vmstat").unlink()
    assert set(asked(Memory(Proc(tree)))) == {("system.memory.usage", attributes) for attributes in kib}


def test_a_counter_that_goes_back_began_after_it_was_last_seen(tree: pathlib.Path) -> None:
    """It tells when it was last seen as the moment since which it counts, and keeps that while it grows; others keep theirs."""
    collector, told = Memory(Proc(tree)), []
    for number, faults in enumerate((5, 9, 9, 2, 8, 1)):
        write(tree, vmstat={"pgmajfault": faults, "pswpin": 3, "pswpout": number})
        found = asked(collector, NOW + number * SECOND)
        told.append(found["system.paging.faults", (("system.paging.type", "major"),)])
        assert found["system.paging.operations", (("system.paging.direction", "out"),)].since_ns == NOW
    assert [((reading.since_ns - NOW) // SECOND, reading.value) for reading in told] == [(0, 5), (0, 9), (0, 9), (2, 2), (2, 8), (4, 1)]


def test_the_network(tree: pathlib.Path) -> None:
    """What TCP sent and sent again, and of each interface but the loopback bytes, errors and drops, both ways."""
    found = asked(Network(Proc(tree)))
    assert found.pop(("legato.host.tcp.sent", ())) == Reading("legato.host.tcp.sent", "{segment}", 1_000, (), NOW)
    assert found.pop(("legato.host.tcp.retransmitted", ())).value == 7
    expected = {}
    for interface, base in (("eth0", 100), ("ib0", 200)):
        for way, first in (("receive", base), ("transmit", base + 8)):
            where = (("network.interface.name", interface), ("network.io.direction", way))
            expected["system.network.io", where] = first
            expected["system.network.errors", where] = first + 2
            expected["system.network.packet.dropped", where] = first + 3
    assert {key: reading.value for key, reading in found.items()} == expected


def test_a_network_that_is_odd(tree: pathlib.Path) -> None:
    """A kernel without TCP's counters tells the interfaces; a short line is passed over; of a thousand interfaces 64 are looked at."""
    put(tree, "net/snmp", "Ip: Forwarding\nIp: 2\n")
    write(tree, interfaces={"lo": range(16), "short": range(11), **{f"veth{number}": range(16) for number in range(1_000)}})
    found = asked(Network(Proc(tree)))
    names = {dict(attributes)["network.interface.name"] for _, attributes in found}
    assert names == {f"veth{number}" for number in range(62)} and len(found) == 62 * 6
    (tree / "net/dev").unlink()
    with pytest.raises(Absent, match="net/dev is not there"):
        asked(Network(Proc(tree)))


def _all(proc: Proc) -> Iterator[Reading]:
    for collector in (Cpu(proc), Memory(proc), Network(proc), Pressure(proc)):
        # Not every kernel that tests run on keeps pressure.
        with contextlib.suppress(Absent):
            for number in range(11):
                yield from asked(collector, NOW + number).values()


@pytest.mark.parametrize("root", [RECORDED, pathlib.Path("/proc")])
def test_every_reading_is_sound(root: pathlib.Path) -> None:
    """On a recorded machine and on this one: names with dots, attributes in order, numbers that are not below zero, counters since then."""
    readings = list(_all(Proc(root)))
    assert len({reading.metric for reading in readings}) >= (10 if root == RECORDED else 7)
    for reading in readings:
        keys = [key for key, _ in reading.attributes]
        assert keys == sorted(keys) and not any("__" in key for key in keys) and "__" not in reading.metric
        assert reading.value >= 0 and reading.unit and (reading.since_ns == 0 or NOW <= reading.since_ns <= NOW + 10)
        gauge = reading.metric in ("system.cpu.utilization", "system.memory.usage")
        assert gauge == (reading.since_ns == 0)
