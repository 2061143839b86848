"""`legato doctor --emitters`: who sends spans, how much is stored and ignored and why, what each cannot say, and what would mend it.

The query and the texts are in ``reports.senders``; this module prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from legato_ingest.cli.layout import Prose
from legato_ingest.reports.format import clean
from legato_ingest.reports.senders import Sender

__all__ = ["print_senders"]


def print_senders(senders: list[Sender], hours: int, screen: Console) -> None:
    """Print a paragraph for each sender."""
    if not senders:
        screen.print(f"no spans in the last {hours} h: `legato doctor` checks the endpoints")
        return
    explained = set[str]()
    for sender in (Sender(**clean(asdict(each))) for each in senders):
        screen.print(Prose.assemble((sender.service or "(no service name)", "bold"), " · ", (sender.sender or "(no scope)", "bold")))
        for line in _lines(sender):
            screen.print(Padding(line, (0, 0, 0, 2)))
        # Once for each family: its releases and services differ in nothing here.
        if sender.missing and sender.family not in explained and (sender.stored or sender.may_be_streams):
            explained.add(sender.family)
            screen.print(Padding(Prose(f"cannot say: {sender.missing}"), (0, 0, 0, 2)))
            screen.print(Padding(Prose(f"→ {sender.mend}"), (0, 0, 0, 2)))
    screen.print(f"{len(senders)} senders in the last {hours} h; numbers of spans are of receipts, so a retry counts again")


def _lines(sender: Sender) -> Iterator[Text]:
    counts = [f"{sender.stored:,} stored"] if sender.stored else []
    if sender.same_response:
        counts.append(f"{sender.same_response:,} of a response that has a richer row ({', '.join(sender.winners)})")
    if sender.ignored:
        counts.append(f"{sender.ignored:,} ignored")
    timing = f"; it sends the time of {sender.timing}" if sender.timing == "each chunk" else f"; its finest time: {sender.timing}"
    yield Prose(", ".join(counts) + (timing if sender.stored and sender.timing else ""))
    for reason in sender.why_ignored:
        yield Prose(f"ignored: {reason}")
