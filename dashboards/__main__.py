"""`python -m dashboards` writes the generated files of this folder; with `--check` it only reports which of them differ.

`legato-*.json` are the dashboards, `alerts/*.sql` the statements of the alert rules (`legato slo` runs them), and
`provisioning/alerting/rules.json` are the rules in Grafana's format.
"""

from __future__ import annotations

import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.alerts.rules import RULES, provisioned
from dashboards.boards import BOARDS

__all__ = ["files"]

HERE = pathlib.Path(__file__).parent


def files() -> dict[pathlib.Path, str]:
    """Return the generated files: path and content."""
    kits = [board() for board in BOARDS]
    generated = {HERE / f"{kit.uid}.json": _json(kit.build(), sort_keys=True) for kit in kits}
    generated |= {HERE / "alerts" / f"{rule.name}.sql": f"-- {rule.title}. Built by `python -m dashboards`.\n{rule.sql}" for rule in RULES}
    generated[HERE / "provisioning" / "alerting" / "rules.json"] = _json(provisioned(), sort_keys=False)
    return generated


def _json(value: object, *, sort_keys: bool) -> str:
    return json.dumps(value, cls=JSONEncoder, indent=2, sort_keys=sort_keys, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files that differ. With ``--check``, report them and exit with status 1 instead."""
    differing = [(path, text) for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in differing:
        print(("differs: " if "--check" in sys.argv else "wrote: ") + str(path.relative_to(HERE)))
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if differing and "--check" in sys.argv:
        sys.exit("the committed files differ from what the code generates; run `python -m dashboards` and commit the result")


if __name__ == "__main__":
    main()
