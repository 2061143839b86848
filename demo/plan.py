"""The plan of a replay. The server, the clients and the comparison share one plan, which is passed to each process as JSON.

Each run has an id that is part of every response id. A stored stream can therefore be matched to its recorded one, also in a store that
contains streams of earlier runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from demo.recording import Recording, Stream, load

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which recordings to replay, at which speed, how many seconds of each (``None``: all), and the id of the run.

    ``plain``: the clients do not record their streams, so only the server does.
    """

    names: tuple[str, ...]
    speed: float
    seconds: float | None
    run: str
    plain: bool = False

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that ``to_json`` encoded."""
        fields = json.loads(text)
        return cls(tuple(fields["names"]), fields["speed"], fields["seconds"], fields["run"], fields["plain"])

    def to_json(self) -> str:
        """Return the plan as text for one command-line argument."""
        return json.dumps(asdict(self))

    def recordings(self) -> list[Recording]:
        """Load the recordings, each cut to the plan's seconds. Raises ``FileNotFoundError`` for an unknown one."""
        loaded = [load(name) for name in self.names]
        return [each if self.seconds is None else each.first(self.seconds) for each in loaded]

    def duration_s(self) -> float:
        """Return how long the replay takes. The recordings are replayed one after another."""
        return sum(recording.duration_us for recording in self.recordings()) / 1e6 / self.speed

    @property
    def vantage(self) -> str:
        """The vantage nearest to the end user that records this run."""
        return "server" if self.plain else "client"

    @property
    def response_id_prefix(self) -> str:
        """The prefix of this run's response ids, which no other run has."""
        return f"chatcmpl-{self.run}-"

    def response_id(self, stream: Stream) -> str:
        """Return the response id that the demo's server uses for this stream."""
        return f"{self.response_id_prefix}{stream.key}"

    def model(self, recording: Recording) -> str:
        """Return the model's name, which differs for each recording so that the report distinguishes them."""
        return f"demo-{recording.name}"
