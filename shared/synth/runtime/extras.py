"""Finds the extra of ours that installs a missing package."""

from __future__ import annotations

import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import requires

#: Distributions whose package has another name.
_DISTRIBUTIONS = {"nacl": "pynacl", "nats": "nats-py", "PIL": "pillow", "yaml": "pyyaml"}
_EXTRA = re.compile(r"""extra == ["']([\w.-]+)["']""")


def install_command(error: ModuleNotFoundError) -> str:
    """Return the pip command that makes the failed import work.

    The import may fail inside a package that lacks one of its own: the nearest package that an extra of ours names
    decides. A folder of ours that is named like an extra needs that extra (`synth.cli.commands.cluster`,
    `synth.gateway`); everything else needs the smallest extra that brings the package.
    """
    frames = [frame.f_globals.get("__package__") or "" for frame, _ in traceback.walk_tb(error.__traceback__)]
    missing = (error.name or "").partition(".")[0]
    if missing in sys.stdlib_module_names:
        return f"a Python that has the module {missing!r}, as on Linux"
    importers = [name.partition(".")[0] for name in reversed(frames)]
    folders = [part for name in frames if name.startswith("synth.") for part in name.split(".")]
    contents = _extras()
    for package in (missing, *importers):
        distribution = distribution_of(package)
        extras = [name for name, brought in contents.items() if distribution in brought]
        if extras:
            named = (name for name in folders if name in extras)
            return f'pip install "synthctl[{next(named, min(extras, key=lambda name: (len(contents[name]), name)))}]"'
    return f'pip install "synthctl" (the module {missing!r} is missing)'


def distribution_of(package: str) -> str:
    """Return the name that a package is installed by."""
    return normalised(_DISTRIBUTIONS.get(package, package))


def normalised(distribution: str) -> str:
    """Return the one form of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _extras() -> Mapping[str, set[str]]:
    """Return the distributions that each extra of the installed `synthctl` brings.

    The wheel lists them in full: an extra that consists of others has all their lines.
    """
    contents: defaultdict[str, set[str]] = defaultdict(set)
    for line in requires("synthctl") or ():
        requirement, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", requirement)
        if name and (extra := _EXTRA.search(marker)):
            contents[extra[1]].add(normalised(name[0]))
    return contents
