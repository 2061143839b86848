"""`python -m dashboards`: writes the dashboards' JSON beside this file; `--check` says what differs and writes nothing."""

from __future__ import annotations

import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.boards import BOARDS

__all__ = ["files"]

HERE = pathlib.Path(__file__).parent


def files() -> dict[pathlib.Path, str]:
    """Each file with what should stand in it."""
    made = {}
    for board in BOARDS:
        kit = board()
        text = json.dumps(kit.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False)
        made[HERE / f"{kit.uid}.json"] = text + "\n"
    return made


def main() -> None:
    """Write what differs, or with ``--check`` only say so (exit status 1)."""
    differing = [(path, text) for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in differing:
        print(("differs: " if "--check" in sys.argv else "wrote: ") + path.name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if differing and "--check" in sys.argv:
        sys.exit("run `python -m dashboards`: the committed JSON is not what the code builds")


if __name__ == "__main__":
    main()
