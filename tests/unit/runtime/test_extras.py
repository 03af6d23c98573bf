"""A package that is missing: which command installs it."""

from __future__ import annotations

from typing import Any

import pytest

from synth import synthd
from synth.runtime.extras import install_command


def failed_import(missing: str, *importers: str) -> None:
    """Fail as an import does in a module of the last of these packages, which the one before it imports, and so on."""
    first, *others = importers
    scope: dict[str, Any] = {"__package__": first, "others": others, "missing": missing, "failed_import": failed_import}
    exec("failed_import(missing, *others)" if others else "raise ModuleNotFoundError(name=missing)", scope)


@pytest.mark.parametrize(
    ("missing", "importers", "extra"),
    [
        # The smallest extra that brings it.
        ("starlette", ["synth.local.task_apps"], "taskapp"),
        ("psutil", ["synth.cli", "synth.local.deployments"], "taskapp"),
        ("nacl.signing", ["synth.backup"], "bus"),
        ("torch", ["synth.local.tiny_models"], "models"),
        ("pyarrow", ["synth.cli.checking", "synth.datasets"], "parquet"),
        ("rapidfuzz", ["synth.filtering"], "graders"),
        # The extra that a folder on the way is named by.
        ("nats", ["synth.cli", "synth.cli.commands.cluster", "synth.bus.server"], "cluster"),
        ("psutil", ["synth.local.cluster"], "cluster"),
        ("nats", ["synth", "synth.trainer", "synth.bus"], "trainer"),
        ("fastapi", ["synth.gateway"], "gateway"),
        # Not that of a folder whose extra does not bring it.
        ("pyarrow", ["synth.gateway", "synth.datasets"], "parquet"),
        # A package that lacks one of its own.
        ("h11", ["synth.taskapp", "uvicorn.protocols.http"], "taskapp"),
    ],
)
def test_a_missing_package_is_installed_by_an_extra(missing: str, importers: list[str], extra: str) -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        failed_import(missing, *importers)
    assert install_command(raised.value) == f'pip install "synthctl[{extra}]"'


def test_one_that_no_extra_knows_is_part_of_a_plain_install() -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        failed_import("mdurl", "synth.cli.tui", "markdown_it")
    assert install_command(raised.value) == "pip install \"synthctl\" (the module 'mdurl' is missing)"


def test_a_module_of_python_is_not_installed_by_pip() -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        failed_import("fcntl", "synth.local.cluster")
    assert install_command(raised.value) == "a Python that has the module 'fcntl', as on Linux"


def test_synthd_names_the_extra_of_its_service(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(name: str) -> None:
        failed_import("nats", name.removesuffix(".app"), "synth.bus")

    monkeypatch.setattr(synthd.importlib, "import_module", fail)
    with pytest.raises(SystemExit) as ended:
        synthd.main(["judge"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == 'judge needs: pip install "synthctl[judge]"\n'
