"""Which Python runs the inference service when vLLM is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from synth.console.errors import CliError
from synth.local.cluster.vllm_env import vllm_python


def make_python(path: Path, *, lacks: str) -> Path:
    """What answers as a Python in which these modules cannot be found."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {lacks}\n")
    path.chmod(0o755)
    return path


def test_the_environment_where_the_user_stands_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SYNTH_INFERENCE_PYTHON", raising=False)
    python = make_python(tmp_path / ".venv-vllm" / "bin" / "python", lacks="")
    assert vllm_python() == str(python)


def test_without_one_the_error_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTH_INFERENCE_PYTHON", str(tmp_path / "python"))
    with pytest.raises(CliError, match=f"expected {tmp_path}/python; make it: make install-vllm"):
        vllm_python()


def test_what_is_no_python_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    monkeypatch.setenv("SYNTH_INFERENCE_PYTHON", str(python))
    python.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(CliError, match="Permission denied"):
        vllm_python()
    python.chmod(0o755)
    with pytest.raises(CliError, match="ends with status 3"):
        vllm_python()


def test_a_relative_path_holds_wherever_the_service_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = make_python(tmp_path / "env" / "python", lacks="")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNTH_INFERENCE_PYTHON", "env/python")
    assert vllm_python() == str(python)


def test_one_that_lacks_vllm_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_python(tmp_path / "bin" / "python", lacks="vllm")
    monkeypatch.setenv("SYNTH_INFERENCE_PYTHON", str(python))
    with pytest.raises(CliError, match="without vllm"):
        vllm_python()
    monkeypatch.setenv("SYNTH_INFERENCE_PYTHON", sys.executable)
    with pytest.raises(CliError, match="without vllm"):
        vllm_python()
