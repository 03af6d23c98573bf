"""Whether code of graders is run, and within which limits."""

from __future__ import annotations

from pydantic import Field

from synth.sandbox.settings import SandboxSettings
from synth.settings import Settings


class PythonGraderSettings(Settings):
    """Settings of every service that reads graders."""

    python_graders: bool = False
    """Whether graders of type `python` are run, for the gateway, the validator and the rollouts service alike. Everyone
    with a key of this cluster's API can then run code on the machines of the rollouts service and of the gateway, in a
    sandbox (`SYNTH_SANDBOX`); without one, these two services do not start. docs/security.md describes the sandbox."""


class PythonPoolSettings(PythonGraderSettings, SandboxSettings):
    """Settings of the services that run them."""

    python_grader_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that a `python` grader may take for one reply; one that takes longer ends its job with the reason."""

    python_grader_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Bytes of memory that each process of a `python` grader may map, and that all of one grading may hold."""

    python_grader_processes: int = Field(default=16, ge=1)
    """The most concurrent processes and threads of one grading."""

    python_grader_disk_bytes: int = Field(default=1 << 26, ge=1 << 12)
    """Bytes that one grading may write into its folder, which is removed afterwards."""

    python_graders_at_once: int = Field(default=4, ge=1)
    """Gradings by `python` graders at one time: of a rollouts service over all its jobs, of a gateway over all calls
    of `graders.run`."""
