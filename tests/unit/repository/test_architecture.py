"""The pages on the code agree with it: which service appends and reads which event, what imports torch, shapes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from synth.events.catalogue import CATALOGUE, Reading, Role

ROOT = Path(__file__).parents[3]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
_EVENT = re.compile(r"`([a-z]+\.[a-z_]+)`")
#: What imports torch, as CONTRIBUTING names it: services, their one command, and shared code.
_TORCH = ("services/synth/trainer/", "services/synth/inference/", "services/synth/local/tiny_models/")
_SHARED_TORCH = ("weights/", "images/", "windowed_attention.py", "runtime/forking/")


def services() -> Iterator[tuple[Role, set[str], set[str]]]:
    """Yield each row of the table of services: its name, and the events that it reads and appends."""
    for name, reads, _, appends in re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", ARCHITECTURE, re.MULTILINE):
        yield Role(name), set(_EVENT.findall(reads)), set(_EVENT.findall(appends))


def test_the_table_of_services_names_every_event_at_its_publisher_and_its_queues():
    rows = list(services())
    owner = {name for name, spec in CATALOGUE.items() if spec.by is Role.OWNER}
    assert {role for role, _, _ in rows} >= {spec.by for spec in CATALOGUE.values()} - {Role.OWNER}
    for role, reads, appends in rows:
        assert appends == {name for name, spec in CATALOGUE.items() if spec.by is role}, role
        queued = {name for name, spec in CATALOGUE.items() if spec.reads.get(role) is Reading.QUEUE}
        assert reads - {name for name in reads if name.startswith(("work.", "ask."))} == queued, role
    (sentence,) = re.findall(r"^The \*owner\*.*?\n\n", ARCHITECTURE, re.DOTALL | re.MULTILINE)
    assert set(_EVENT.findall(sentence)) == owner


def imports_torch(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.split(".")[0] == "torch" for name in names):
            return True
    return False


def test_nothing_imports_torch_but_the_code_that_contributing_names():
    importers = [path for top in ("shared", "services") for path in (ROOT / top).rglob("*.py") if imports_torch(path)]
    allowed = (*_TORCH, *(f"shared/synth/{name}" for name in _SHARED_TORCH))
    assert [path for path in importers if not str(path.relative_to(ROOT)).startswith(allowed)] == []
    (sentence,) = re.findall(r"Only trainer, inference.*?import torch\.", CONTRIBUTING, re.DOTALL)
    assert all(f"`{name.rstrip('/')}`" in sentence for name in _SHARED_TORCH)


def test_every_dimension_of_a_tensor_is_in_the_table_of_shapes():
    letters = set(re.findall(r"^\| `([A-Z])` \|", CONTRIBUTING, re.MULTILINE))
    for place in ("services/synth/trainer/learner", "services/synth/inference/engines", "shared/synth/images"):
        for path in (ROOT / place).rglob("*.py"):
            suffixes = re.findall(r"\b[a-z]\w*_([A-Z]{2,4})\b", path.read_text())
            assert set("".join(suffixes)) <= letters, path
