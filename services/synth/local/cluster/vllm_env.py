"""The Python of vLLM's environment, which runs the inference service in place of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from synth.console.errors import CliError

_FOLDER = ".venv-vllm"
_PROBE_S = 60.0
# Looked for and not imported: importing vLLM takes a quarter of a minute.
_PROBE = "import importlib.util as u; print(*[n for n in ('vllm', 'synth', 'nats') if u.find_spec(n) is None])"


def find_vllm_python() -> Path | None:
    """Return the Python that `vllm_python` would use, without checking it; None if there is none."""
    return next((place for place in _places() if place.is_file()), None)


def vllm_python() -> str:
    """Return the Python of `SYNTH_INFERENCE_PYTHON`, else of `.venv-vllm` here or beside our own environment.

    Raises `CliError` when there is none, or it has no vLLM.
    """
    places, found = _places(), find_vllm_python()
    if found is None:
        raise CliError(
            "the environment of vLLM is not there",
            expected=" or ".join(str(place) for place in places),
            fix="make it: make install-vllm; or name another one's Python in SYNTH_INFERENCE_PYTHON",
            where="--engine vllm",
        )
    if missing := _missing_packages(found):
        raise CliError(
            f"{found} cannot run the inference service with vLLM",
            expected="an environment with vLLM and this package",
            fix="install it again: make install-vllm",
            where=missing,
        )
    return str(found)


def _missing_packages(python: Path) -> str:
    """Return why this Python cannot run the inference service; "" when it can."""
    try:
        probe = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if probe.returncode:
        return probe.stderr.strip().rpartition("\n")[2] or f"it ends with status {probe.returncode}"
    missing = probe.stdout.strip()
    return f"without {missing}" if missing else ""


def _places() -> list[Path]:
    """Return the places to look in: the named one, else the working directory and the parent of our own environment."""
    if named := os.environ.get("SYNTH_INFERENCE_PYTHON"):
        return [Path(named).absolute()]
    return [root / _FOLDER / "bin" / "python" for root in dict.fromkeys([Path.cwd(), Path(sys.prefix).parent])]
