"""`python -m contracts`: write every generated page of docs/; `--check` only lists the pages that differ."""

from __future__ import annotations

import sys
from pathlib import Path

from contracts.documents import DOCUMENTS

DOCS = Path(__file__).parents[1] / "docs"


def main(arguments: list[str]) -> int:
    stale = [
        name for name, make in DOCUMENTS.items() if not (DOCS / name).is_file() or (DOCS / name).read_text() != make()
    ]
    for name in stale:
        if "--check" not in arguments:
            (DOCS / name).write_text(DOCUMENTS[name]())
        sys.stdout.write(f"docs/{name}\n")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
