"""Pages of jobs that pass a filter.

The number of conditions in a filter is limited, and its query runs off the event loop.
"""

from __future__ import annotations

from functools import partial

from synth.errors import UserError
from synth.gateway.deps import Gateway
from synth.gateway.read_model.filters import JobFilter
from synth.gateway.read_model.projection import JobRow
from synth.runtime.off_loop import INLINE_BYTES


async def find_jobs(
    gateway: Gateway, org: str, *, limit: int, wanted: JobFilter, after: str | None = None
) -> tuple[list[JobRow], bool]:
    """Return the newest jobs of an organisation that pass a filter, and whether there are more.

    after: only jobs that are older than the job with this id. Raises a 404, and `UserError` for a filter of too many
    conditions, and for a query that takes too long.
    """
    before = (await gateway.job(org, after)).created_seq if after else None
    settings = gateway.settings
    if wanted.repeated > settings.list_conditions:
        raise UserError(
            f"a filter of {wanted.repeated:,} tags, pairs of metadata, files and models",
            expected=f"at most {settings.list_conditions} (SYNTH_LIST_CONDITIONS)",
            fix="filter by fewer tags or pairs of metadata, and by the others in the answer",
            where="query",
        )
    page = {"limit": limit + 1, "wanted": wanted, "before": before}
    try:
        if wanted == JobFilter():
            rows = gateway.read_model.jobs(org, **page)
        else:
            query = partial(gateway.read_model.jobs_within, settings.list_timeout_s, org, **page)
            # The size of a large request makes organisations share the threads by turns.
            rows = await gateway.service.off_loop.thread(query, org=org, size=INLINE_BYTES + 1)
    except TimeoutError as error:
        raise UserError(
            f"the jobs were not found within {settings.list_timeout_s:g} s (SYNTH_LIST_TIMEOUT_S)",
            fix="filter by created_after and created_before too, or by fewer conditions",
            where="query",
        ) from error
    return rows[:limit], len(rows) > limit
