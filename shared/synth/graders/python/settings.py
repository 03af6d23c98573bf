"""Whether code of graders is run, and within which bounds."""

from __future__ import annotations

from pydantic import Field

from synth.settings import Settings


class PythonGraderSettings(Settings):
    """Settings of every service that reads graders."""

    python_graders: bool = False
    """Whether graders of type `python` are run. THERE IS NO SANDBOX: with it, whoever has a key of this cluster's API
    runs any code as the users of the rollouts service and of the gateway, on their machines, with their files and their
    network, and can so read the secrets of this cluster. The time, memory and output of a process are bounded, and it
    is given no environment variables; nothing else holds it. Set it, for the gateway, the validator and the rollouts
    service alike, only where you would give everybody with a key a shell."""


class PythonPoolSettings(PythonGraderSettings):
    """Settings of whoever runs them."""

    python_grader_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that a `python` grader may take for one reply; one that takes longer ends its job with the reason."""

    python_grader_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Bytes of memory that one process of a `python` grader may map."""

    python_graders_at_once: int = Field(default=4, ge=1)
    """Processes of `python` graders at one time: of a rollouts service over all its jobs, of a gateway over all calls
    of `graders.run`."""
