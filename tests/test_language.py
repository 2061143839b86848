"""The language of code and documents: plain technical English, one figure in one place.

Words of a private dialect are listed here and must not come back, in prose or in names. Quotations in documents (code spans, double
quotes) and recorded inputs are exempt.
"""

from __future__ import annotations

import pathlib
import re
from collections import defaultdict

from helpers.repo.repository import ROOT, text_files

_SUFFIXES = frozenset((".py", ".md", ".sql", ".toml", ".yml", ".yaml", ".sh", ".go", ".c", ".js", ".txt", ".json", ".service", ""))
_RECORDED = ("demo/recordings/", "tests/data/", "tests/gpu_agent/data/", "schema/timeline_vectors.json", "LICENSE", "tests/goclient/go.")
# Each word in two pieces, so that this file does not hold what it forbids. Each has a hint for the failure message.
_BANNED = {
    "do" + "ors?": "endpoint, listener, socket",
    "to" + "ld": "reported, returned, named",
    "te" + "lls?|te" + "lling": "reports, returns, shows",
    "who" + "se": "a noun, or 'of the …'",
    "who" + "ever|who" + "m": "a noun: the client, the caller",
    "no" + "body": "no client, no process, nothing",
    "some" + "body": "a client, a user",
    "what (?:ca" + "me|is the" + "re|was the" + "re)": "the noun: the request, the rows",
    "one id" + "ea": "a plain sentence",
    "le" + "nds?": "copies, passes",
    "he" + "eds?": "follows, reports",
    "of its o" + "wn": "its own, a separate",
    "like" + "wise": "repeat the sentence",
    "laid o" + "ver": "aligned with",
    "as sa" + "id": "leave it out",
}
_PATTERN = re.compile(r"(?<![a-z])(" + "|".join(_BANNED) + r")(?![a-z])", re.IGNORECASE)
_QUOTED = re.compile(r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"|“[^”]*”", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _prose(path: pathlib.Path, text: str) -> str:
    """The text to look at: documents without quotations, code with its names cut into words. Line breaks stay."""
    if path.suffix == ".md":
        return _QUOTED.sub(lambda match: "\n" * match.group().count("\n"), text)
    return _CAMEL.sub(" ", text).replace("_", " ")


def test_no_word_of_the_dialect_is_left() -> None:
    """Names and prose use the words of the field (docs/concepts.md has the glossary)."""
    found = []
    for path, text in text_files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix not in _SUFFIXES or name.startswith(_RECORDED):
            continue
        for number, line in enumerate(_prose(path, text).splitlines(), 1):
            found += [f"{name}:{number}: {match.group()!r}" for match in _PATTERN.finditer(line)]
    assert not found, f"{len(found)} words, the first: {found[:20]}"


# A figure that several pages state, and how each page writes it.
_FIGURES = {
    "ingest, million chunks a second": r"(\d+\.\d+) million chunks (?:a|per) second",
    "spans of the crash bench": r"0 of ([\d,]+) (?:spans|streams)",
    "bytes a chunk at rest": r"\| in the store, per chunk \| (\d+\.\d+) bytes",
    "attribution, macro F1": r"macro F1 (\d\.\d+)",
}


def test_pages_state_the_same_figures() -> None:
    """A figure that stands on several pages is the same on all of them."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    stated: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for page in pages:
        for figure, pattern in _FIGURES.items():
            for value in re.findall(pattern, page.read_text(encoding="utf-8")):
                stated[figure][value].append(page.name)
    assert stated, "no page states any of the figures: the patterns are out of date"
    assert not {figure: dict(values) for figure, values in stated.items() if len(values) > 1}
