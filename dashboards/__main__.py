"""`python -m dashboards`: writes the files that others read, beside this one; `--check` says what differs and writes nothing.

`legato-*.json` are the dashboards, `alerts/*.sql` the rules' statements (`legato slo` runs them), `provisioning/alerting/rules.json` is the
rules as Grafana reads them.
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
    """Each file with what should stand in it."""
    kits = [board() for board in BOARDS]
    made = {HERE / f"{kit.uid}.json": _json(kit.build(), sort_keys=True) for kit in kits}
    made |= {HERE / "alerts" / f"{rule.name}.sql": f"-- {rule.title}. Built by `python -m dashboards`.\n{rule.sql}" for rule in RULES}
    made[HERE / "provisioning" / "alerting" / "rules.json"] = _json(provisioned(), sort_keys=False)
    return made


def _json(value: object, *, sort_keys: bool) -> str:
    return json.dumps(value, cls=JSONEncoder, indent=2, sort_keys=sort_keys, ensure_ascii=False) + "\n"


def main() -> None:
    """Write what differs, or with ``--check`` only say so (exit status 1)."""
    differing = [(path, text) for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in differing:
        print(("differs: " if "--check" in sys.argv else "wrote: ") + str(path.relative_to(HERE)))
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if differing and "--check" in sys.argv:
        sys.exit("run `python -m dashboards`: the committed JSON is not what the code builds")


if __name__ == "__main__":
    main()
