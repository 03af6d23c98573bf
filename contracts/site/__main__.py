"""`make site`: arrange the pages in `.site/docs` and build them into `.site/html`, strictly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from contracts.site.pages import ROOT, Site

FOLDER = ROOT / ".site"


def main() -> int:
    """Build the site; return mkdocs's exit code, which is 1 for any warning."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    pages = FOLDER / "docs"
    navigation = Site(ROOT).write(pages)
    shutil.copyfile(ROOT / "contracts/site/site.css", pages / "site.css")
    # JSON is YAML, and mkdocs.yml has tags that only mkdocs reads.
    config = {"INHERIT": "../mkdocs.yml", "docs_dir": "docs", "site_dir": "html", "nav": navigation}
    (FOLDER / "mkdocs.yml").write_text(json.dumps(config, indent=1))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", FOLDER / "mkdocs.yml"]
    # Without the variable, Material prints an advertisement for its successor.
    return subprocess.run(command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
