"""What each extra installs, against what the modules that need it import."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from synth.events.catalogue import SERVICES
from synth.runtime.extras import distribution_of, normalised

ROOT = Path(__file__).parents[3]
#: Packages of a direct dependency that always installs them.
COMES_WITH = {"httpcore": "httpx", "pydantic_core": "pydantic"}
#: The modules that an extra makes work, with all that they import.
MODULES = {
    **{service: (f"synth.{service}",) for service in SERVICES},
    "bus": ("synth.bus", "synth.bus_admin", "synth.backup", "synth.erasure"),
    "cluster": ("synth",),
    "demo": ("synth.demo", "synth.cli.demo"),
    "graders": ("synth.graders",),
    "models": ("synth.local.tiny_models", "synth.cli.transfer.pull"),
    "parquet": ("synth.datasets",),
    "plots": ("synth.cli.figures",),
    "taskapp": (
        *("synth.taskapp", "synth.local.task_apps", "synth.local.deployments"),
        *("synth.cli.task_apps", "synth.cli.commands.task_app"),
    ),
    "tensors": ("synth.trajectories",),
    "vllm": ("synth.inference",),
    "vllm-cpu": ("synth.inference",),
}
#: Modules that work with these extras only. Other modules import them while they run, if they are to be used.
OPTIONAL = {
    "synth.inference.engines.vllm": ("vllm", "vllm-cpu"),
    "synth.datasets.parquet": ("parquet", "files", "cluster", "demo"),
    "synth.cli.demo": ("demo",),
    "synth.cli.figures.drawing": ("plots", "demo"),
    "synth.local.deployments.modal_app": (),  # the user installs modal
}


@cache
def source_files() -> dict[str, Path]:
    """Every module of `synth`, by name."""
    files = [(top, file) for top in ("shared", "services") for file in (ROOT / top).rglob("*.py")]
    names = [(".".join(file.relative_to(ROOT / top).with_suffix("").parts), file) for top, file in files]
    return {name.removesuffix(".__init__"): file for name, file in names}


@cache
def imports(module: str) -> frozenset[str]:
    """What a module imports when it runs, wherever the statement stands."""
    return frozenset(_imports(ast.parse(source_files()[module].read_text())))


def _imports(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]):
            yield name
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _imports(child)


def third_party(roots: tuple[str, ...], *, without: Collection[str] = ()) -> dict[str, str]:
    """The packages that modules import, and all modules that these import; each with one module that does."""
    files = source_files()
    todo = [name for name in files if any(f"{name}.".startswith(f"{root}.") for root in roots)]
    seen: set[str] = set()
    packages: dict[str, str] = {}
    while todo:
        module = todo.pop()
        if module in seen or any(f"{module}.".startswith(f"{name}.") for name in without):
            continue
        seen.add(module)
        for name in imports(module):
            top = name.partition(".")[0]
            if top == "synth":
                todo += [known for known in (name, name.rpartition(".")[0]) if known in files]
            elif top not in sys.stdlib_module_names:
                packages[top] = module
    return packages


def requirements(extra: str) -> set[str]:
    """The distributions that a plain install and an extra bring, by pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]

    def lines(of: str) -> Iterator[str]:
        for line in extras[of]:
            if own := re.match(r"synthctl\[([\w,-]+)\]", line):
                for name in own[1].split(","):
                    yield from lines(name)
            else:
                yield line

    return {normalised(re.split(r"[^\w.-]", line)[0]) for line in [*project["dependencies"], *lines(extra)]}


@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_installs_what_its_modules_import(extra: str) -> None:
    installed = requirements(extra)
    without = [module for module, extras in OPTIONAL.items() if extra not in extras]
    missing = {
        package: module
        for package, module in third_party(MODULES[extra], without=without).items()
        if distribution_of(COMES_WITH.get(package, package)) not in installed
        and not (package == "vllm" and extra == "vllm-cpu")
    }
    assert missing == {}


def test_every_package_is_found_under_the_name_that_it_is_installed_by() -> None:
    """Where the two names differ, `synth.runtime.extras` has the pair."""
    known = packages_distributions()
    imported = third_party(("synth",))
    assert {"torch", "nats", "nacl", "starlette"} <= imported.keys()
    wrong = {
        package: known[package]
        for package in imported
        if package in known and distribution_of(package) not in map(normalised, known[package])
    }
    assert wrong == {}
