"""The buffer between collectors and loop: its bound and its thread safety."""

from __future__ import annotations

import threading

from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.collectors.measurement import Measurement, Timed
from legato_gpu_agent.plugin.model import Engine
from legato_gpu_agent.plugin.protocol import Datagram

NOW = 1_700_000_000_000_000_000


def samples(*values: float) -> list[Timed]:
    """Return one measurement per value."""
    return [(NOW, Measurement("m", "1", value)) for value in values]


def test_a_buffer_is_bounded() -> None:
    """The oldest measurements and datagrams are dropped and counted; after a drain there is room again."""
    buffer = Buffer(measurements_max=3, datagrams_max=2)
    buffer.add(samples(1, 2, 3))
    assert buffer.overflowed == 0
    buffer.add(samples(4))
    buffer.add([])
    assert buffer.overflowed == 1
    buffer.add(samples(5, 6, 7, 8, 9))
    assert buffer.overflowed == 6
    datagrams = [Datagram(Engine(name, 1)) for name in "abc"]
    for datagram in datagrams:
        buffer.add_datagram(datagram)
    assert buffer.overflowed == 7
    assert buffer.drain() == (samples(7, 8, 9), datagrams[1:])
    assert buffer.drain() == ([], [])
    buffer.add(samples(1))
    assert buffer.drain() == (samples(1), []) and buffer.overflowed == 7


def test_a_buffer_is_thread_safe() -> None:
    """All added entries are drained or counted."""
    buffer, out = Buffer(measurements_max=50), 0

    def put() -> None:
        for _ in range(500):
            buffer.add(samples(1, 2, 3))

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        out += len(buffer.drain()[0])
    assert out + len(buffer.drain()[0]) + buffer.overflowed == 4 * 500 * 3
