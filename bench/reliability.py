"""A reliability diagram: how often verdicts of each confidence are right.

    python bench/reliability.py --scorer score_attribution.py RECORDING VERDICTS.jsonl [RECORDING VERDICTS.jsonl …] [--coarse]

The verdicts are the output of `bench/attribution.py`. The scorer is the script that knows the truth of the recordings; it defines the right
cause as the one with most of the excess, or `mixed` if several share it. `--coarse`: only generated late or delivered late. Verdicts
`unknown` are neither right nor wrong and are counted separately. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import math
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

ORDER = ("proven", "strong", "likely", "possible", "unknown")
BAR = 40


def loaded(path: pathlib.Path) -> ModuleType:
    """The scorer as a module."""
    spec = importlib.util.spec_from_file_location("scorer", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python script")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(scorer: Any, recording: str, verdicts: str, coarse: bool) -> Iterator[tuple[str, str]]:
    """Of each true stall that was judged: the confidence, and right, wrong or silent."""
    want, got, _, _ = scorer.matched(recording, verdicts, 1.0)
    for key, truth in want.items():
        verdict = got.get(key)
        if verdict is None or not truth["right"]:
            continue
        said, right = verdict["cause"], truth["right"]
        if coarse:
            said, right = scorer.COARSE.get(said, said), {scorer.COARSE[cause] for cause in right}
        silent = said == "unknown" or coarse and said == "mixed"
        correct = said in right or said == "mixed" and len(right) > 1
        yield verdict["confidence"], "silent" if silent else "right" if correct else "wrong"


def interval(right: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (Wilson, 1927)."""
    z, share = 1.96, right / n
    middle, width = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - width) / (1 + z * z / n), (middle + width) / (1 + z * z / n)


def main() -> None:
    """Count, and draw."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pairs", nargs="+", help="a recording's folder and its verdicts, in turn")
    options.add_argument("--scorer", type=pathlib.Path, required=True)
    options.add_argument("--coarse", action="store_true")
    given = options.parse_args()
    if len(given.pairs) % 2:
        raise SystemExit(f"{len(given.pairs)} names: expected a recording and its verdicts, in turn")
    scorer = loaded(given.scorer)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for recording, verdicts in zip(given.pairs[::2], given.pairs[1::2], strict=True):
        counts.update(answers(scorer, recording, verdicts, given.coarse))
    out = {}
    for name in ORDER:
        right, wrong, silent = (counts[name, answer] for answer in ("right", "wrong", "silent"))
        if right + wrong:
            low, high = interval(right, right + wrong)
            share = right / (right + wrong)
            print(f"{name:<9} {'█' * round(BAR * share):<{BAR}} {share:7.2%}  ({low:.2%} to {high:.2%}), n={right + wrong:,}")
            out[name] = {"right": right, "n": right + wrong}
        if silent:
            print(f"{name:<9} said nothing, n={silent:,}")
            out[name] = {**out.get(name, {}), "silent": silent}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
