"""A resolved job as the text of a job file that can be submitted again."""

from __future__ import annotations

from typing import Any

import tomlkit

from synth.jobs.as_file import job_file
from synth.methods.job import Job


def job_text(job: Job, *, heading: str) -> str:
    """Return a TOML that resolves to this job. heading: a comment at its top."""
    tables: dict[str, Any] = job_file(job)
    return f"# {heading}\n\n{tomlkit.dumps(tables)}"
