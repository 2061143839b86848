"""What is to be replayed: the same plan for the server, the clients and the comparison, handed to each process as JSON.

One idea: a run has a token that stands in every response's id, so that a stored stream finds its recorded one, also in a store that
earlier runs left something in.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from demo.recording import Recording, Stream, load

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which recordings, how fast, and how much of each."""

    names: tuple[str, ...]
    speed: float
    seconds: float | None
    run: str

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that ``to_json`` wrote."""
        fields = json.loads(text)
        return cls(tuple(fields["names"]), fields["speed"], fields["seconds"], fields["run"])

    def to_json(self) -> str:
        """The plan as one argument of a command line."""
        return json.dumps(asdict(self))

    def recordings(self) -> list[Recording]:
        """The recordings, each cut to the plan's seconds. Raises ``FileNotFoundError``."""
        loaded = [load(name) for name in self.names]
        return [each if self.seconds is None else each.first(self.seconds) for each in loaded]

    def duration_s(self) -> float:
        """How long the replay takes: the recordings follow one another."""
        return sum(recording.duration_us for recording in self.recordings()) / 1e6 / self.speed

    @property
    def response_id_prefix(self) -> str:
        """What the ids of this run's responses begin with, and no other's."""
        return f"chatcmpl-{self.run}-"

    def response_id(self, stream: Stream) -> str:
        """The response id that the demo's server gives this stream."""
        return f"{self.response_id_prefix}{stream.key}"

    def model(self, recording: Recording) -> str:
        """The model's name: one for each recording, so that the report tells them apart."""
        return f"demo-{recording.name}"
