"""Find the job that a user names: by its id, the beginning of its id, its name or label, or `@last`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from synth.cli.tui.output import age
from synth.console.errors import NotFound, UsageProblem

if TYPE_CHECKING:
    from synth.api.schemas import Job
    from synth.client import Client

LAST = "@last"
_WHOLE = re.compile(r"job_[0-9a-z]{16}")
_LONGEST_ID = 20
_MOST_CANDIDATES = 10


def find_job_id(client: Client, text: str) -> str:
    """Return the id of the job that `text` names. A whole id is returned without a request.

    text: an id, its unique beginning (with `job_` or without), the job's name or `[model].label`, or `@last` for the
    newest job. Raises `NotFound`, and `UsageProblem` with the candidates if it names several.
    """
    if _WHOLE.fullmatch(text):
        return text
    if text == LAST:
        newest = [*client.jobs.list(limit=1)]
        if not newest:
            raise NotFound(f"there is no job yet, so {LAST} is none", fix="submit one: synthctl submit FILE")
        return newest[0].id
    prefix = text if text.startswith("job_") else f"job_{text}"
    most = _MOST_CANDIDATES + 1
    # No id is as long as the longest name.
    matches = [*client.jobs.list(prefix=prefix, limit=most)] if text and len(prefix) <= _LONGEST_ID else []
    if text and not text.startswith("job_"):
        known = {job.id for job in matches}
        matches += [job for job in client.jobs.list(name=text, limit=most) if job.id not in known]
    if len(matches) == 1:
        return matches[0].id
    expected = f"a job's id, the beginning of one, its name, or {LAST} for the newest"
    if not matches:
        raise NotFound(f"there is no job {text!r}", expected=expected, fix="synthctl jobs ls shows them")
    shown = "\n".join(_candidate(job) for job in matches[:_MOST_CANDIDATES])
    more = "\nand more" if len(matches) > _MOST_CANDIDATES else ""
    raise UsageProblem(f"several jobs are {text!r}", expected="an id, or more of one", fix=f"one of\n{shown}{more}")


def _candidate(job: Job) -> str:
    return f"  {job.id}  {job.state}, {age(job.created_at)} ago, {job.name.rpartition('/')[2]}"
