"""Which job a user means: its id, the beginning of its id, or `@last`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from synth.cli.errors import NotFound, UsageProblem
from synth.cli.tui.output import age

if TYPE_CHECKING:
    from synth.api.schemas import Job
    from synth.cli.api.client import Client

LAST = "@last"
_WHOLE = re.compile(r"job_[0-9a-z]{16}")
_MOST_CANDIDATES = 10


def find_job_id(client: Client, text: str) -> str:
    """The id of the job that `text` names. A whole id is not looked up.

    text: an id, its unique beginning (with `job_` or without), or `@last` for the newest job. Raises `NotFound`, and
    `UsageProblem` with the candidates where several ids begin so.
    """
    if _WHOLE.fullmatch(text):
        return text
    if text == LAST:
        newest = client.jobs(limit=1)
        if not newest:
            raise NotFound(f"there is no job yet, so {LAST} is none", fix="submit one: synthctl submit FILE")
        return newest[0].id
    prefix = text if text.startswith("job_") else f"job_{text}"
    found = client.jobs(prefix=prefix, limit=_MOST_CANDIDATES + 1) if text else []
    if len(found) == 1:
        return found[0].id
    expected = f"a job's id, the beginning of one, or {LAST} for the newest"
    if not found:
        raise NotFound(f"there is no job {text!r}", expected=expected, fix="synthctl jobs ls shows them")
    shown = "\n".join(_candidate(job) for job in found[:_MOST_CANDIDATES])
    more = "\nand more" if len(found) > _MOST_CANDIDATES else ""
    raise UsageProblem(f"several jobs begin with {text!r}", expected="more of the id", fix=f"one of\n{shown}{more}")


def _candidate(job: Job) -> str:
    return f"  {job.id}  {job.state}, {age(job.created_at)} ago, {job.name.rpartition('/')[2]}"
