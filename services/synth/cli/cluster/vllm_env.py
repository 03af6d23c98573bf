"""Where vLLM is: its environment's Python, which runs the inference service in place of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from synth.cli.errors import CliError

_FOLDER = ".venv-vllm"
_PROBE_S = 60.0
# Looked for and not imported: importing vLLM takes a quarter of a minute.
_PROBE = "import importlib.util as u; print(*[n for n in ('vllm', 'synth', 'nats') if u.find_spec(n) is None])"


def vllm_python() -> str:
    """The Python of `SYNTH_INFERENCE_PYTHON`, else of `.venv-vllm` here or beside our own environment.

    Raises `CliError` when there is none, or it has no vLLM.
    """
    named = os.environ.get("SYNTH_INFERENCE_PYTHON")
    places = [Path(named)] if named else [root / _FOLDER / "bin" / "python" for root in _roots()]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise CliError(
            "the environment of vLLM is not there",
            expected=" or ".join(str(place) for place in places),
            fix="make it: make install-vllm; or name another one's Python in SYNTH_INFERENCE_PYTHON",
            where="--engine vllm",
        )
    asked = subprocess.run([found, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=False)
    if asked.returncode or asked.stdout.strip():
        raise CliError(
            f"{found} cannot run the inference service with vLLM",
            expected="an environment with vLLM and this package",
            fix="make it anew: make install-vllm",
            where=asked.stderr.strip().splitlines()[-1] if asked.returncode else f"without {asked.stdout.strip()}",
        )
    return str(found)


def _roots() -> list[Path]:
    """Where the user stands, and where the environment that we run in was made."""
    return list(dict.fromkeys([Path.cwd(), Path(sys.prefix).parent]))
