"""docs/client-examples.md: the result of every TOML in the published client's wheels.

`python -m contracts.client_examples 0.2.16=SITE_PACKAGES 0.2.23=SITE_PACKAGES` writes it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synth.cli.jobs.files import Flags, validate_text
from synth.client.connections.config import ConfigValue
from synth.client.submission import LenientRegistry
from synth.errors import Problem, UserError
from synth.jobs.parse.kinds import recognise_non_job
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import ValidationReport

PAGE = Path(__file__).parents[1] / "docs" / "client-examples.md"

_FOLDERS = ("examples", "synth_ai")
_FLAG = re.compile(r"--[a-z-]+")
_NO_EFFECT = re.compile(r" (?:has|have) no effect")
#: A file that is there wherever this runs: only that a dataset can be read is looked at.
_DATASET = Path(__file__)
GIVEN: dict[str, dict[str, Any]] = {
    "--dataset": {"dataset": _DATASET},
    "--validation": {"validation": _DATASET},
    "--task-url": {"task_url": ConfigValue("http://127.0.0.1:8001", "--task-url")},
    "--model": {"model": "Qwen/Qwen3-0.6B"},
    "--allow-experimental": {"allow_experimental": True},
}
#: The model for a file that needs images.
_SEES = "Qwen/Qwen3-VL-4B-Instruct"
#: The flag that replaces a field of the job, if the field names a file that is not here.
_FILES = {"[job].data": "--dataset", "[job].data_path": "--dataset", "[data].validation_path": "--validation"}
_HEAD = """\
# The published client's examples

Every TOML in the wheels of `synth-ai` 0.2.16 and 0.2.23, and the result of `synthctl config check`. A file is
**accepted** as it is or with the flags that it leaves open, such as a dataset that lies elsewhere; **refused** with
its reason; **checked** if it is a filter, which `synthctl filter` runs; or it is **no job**. If its model is no
hosted base, **the cluster decides**: `config check` warns of it, and refuses it beside the data of a cluster
(`--data`) without such a model. Only the file is accepted: a cluster also needs the things that it names, and refuses
the job without them, as a new cluster does: the weights of the base (`synthctl models pull`, or a stand-in by
`synthctl models alias`), the providers of the judges (`SYNTH_JUDGE_PROVIDERS`), a trainer that computes on as many
GPUs. The last column also names the keys that are read and have no effect, and the changed values; `config check`
prints the reason for each, with its line.

This page is generated (`make test-clients` compares it with the wheels).

"""


@dataclass(frozen=True)
class Verdict:
    """The result of one file. problems: why it is refused, once `flags` are given. notes: keys without effect."""

    kind: str
    word: str
    flags: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: str = ""

    def cells(self) -> list[str]:
        result = self.word + (f" with `{' '.join(self.flags)}`" if self.flags else "")
        return [self.kind, result, "; ".join(self.problems) or self.notes]


def verdicts(site_packages: Path) -> dict[str, Verdict]:
    """Return the verdict on each example of one installed client, by its path in the wheel."""
    files = [f for folder in _FOLDERS for f in (site_packages / folder).rglob("*.toml")]
    return {f.relative_to(site_packages).as_posix(): verdict(f.read_bytes()) for f in sorted(files)}


def verdict(text: bytes) -> Verdict:
    """Check one file as it is, then with the flags that it leaves to the user."""
    try:
        document = read_toml(text, name="job.toml")
    except UserError as error:
        return Verdict("-", "refused", problems=tuple(_said(p) for p in error.problems))
    other = recognise_non_job(document)
    if other is not None and document.get(("algorithm", "type")) is None:
        return Verdict("-", "no job", problems=(other.what,))
    flags: list[str] = []
    found, unknown = _report(text, flags)
    while missing := [f for f in _asked_for(found.problems) if f not in flags]:
        flags += missing
        found, unknown = _report(text, flags)
    kind = found.kind or "-"
    if found.problems:
        return Verdict(kind, "refused", problems=tuple(_said(p) for p in found.problems))
    if unknown:
        return Verdict(kind, "the cluster decides", flags=tuple(flags), problems=tuple(_said(p) for p in unknown))
    word = "checked" if kind == "filter" else "accepted"
    return Verdict(kind, word, flags=tuple(flags), notes=", ".join(_note(w) for w in found.warnings))


def _report(text: bytes, flags: list[str]) -> tuple[ValidationReport, list[Problem]]:
    """Run `config check` without any cluster's data; also returns the models that only a cluster can know."""
    values: dict[str, Any] = {}
    for flag in flags:
        values |= GIVEN[flag]
    registry = LenientRegistry()
    _, found = validate_text(text.decode(), name="job.toml", flags=replace(Flags(), **values), registry=registry)
    if "--model" in flags and any("sees no images" in p.what for p in found.problems):
        seeing = replace(Flags(), **(values | {"model": _SEES}))
        _, found = validate_text(text.decode(), name="job.toml", flags=seeing, registry=registry)
    return found, registry.unknown_models


def _asked_for(problems: list[Problem]) -> list[str]:
    """Return the flags that would help: named by a problem, --model for a placeholder, and flags of missing files."""
    named = [flag for p in problems for flag in _FLAG.findall(p.fix) if flag in GIVEN]
    named += ["--model" for p in problems if "REPLACE" in p.what]
    return named + [_FILES[_place(p.where).partition(" '")[0]] for p in problems if "no such file" in p.what]


def _place(where: str) -> str:
    """Return a place without file and line, which differ between versions."""
    return where.partition(" ")[2]


def _said(problem: Problem) -> str:
    place = _place(problem.where)
    return f"`{place}`: {problem.what}" if place else problem.what


def _note(warning: str) -> str:
    text = warning.partition(" ")[2]
    if _NO_EFFECT.search(text):
        return f"`{_NO_EFFECT.split(text)[0]}`"
    place, _, rest = text.partition(" ")
    return f"`{place}` {rest.partition(':')[0]}"


def page(site_packages: dict[str, Path]) -> str:
    """Return the whole page. site_packages: where each version is installed."""
    rows: dict[tuple[str, Verdict], list[str]] = {}
    for version, folder in site_packages.items():
        for file, found in verdicts(folder).items():
            rows.setdefault((file, found), []).append(version)
    lines = ["| file | version | kind | verdict | reason, or keys without effect |", "|---|---|---|---|---|"]
    for (file, found), versions in sorted(rows.items(), key=lambda row: (row[0][0], row[1])):
        cells = [f"`{file}`", ", ".join(versions), *found.cells()]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    installed = dict(argument.split("=", 1) for argument in arguments)
    PAGE.write_text(page({version: Path(folder) for version, folder in installed.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
