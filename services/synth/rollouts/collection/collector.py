"""The collection of one job's rollouts, request by request, within one bound on concurrency.

Invariants. At most `bound` rollouts of a job, over all iterations, are at its task app at any time. A
rollout is durable (`complete`) before it counts. A rollout that is already in the log is never run again. The
request and the results of its groups decide which rollouts run, never the clock. Nothing here knows HTTP or the bus:
the caller passes the functions that run a try and store its result.
"""

from __future__ import annotations

from collections.abc import Callable

from synth.rollouts.collection.batching import CreditRules
from synth.rollouts.collection.request_runner import RequestRunner
from synth.rollouts.collection.types import (
    Abandon,
    CollectRequest,
    Complete,
    EnvironmentBroken,
    Judge,
    PriorProgress,
    RequestResult,
    RunTry,
)
from synth.rollouts.concurrency.job_concurrency import JobConcurrency


class Collector:
    """The runner of one job's requests, which share its concurrency."""

    def __init__(
        self,
        job_id: str,
        *,
        concurrency: JobConcurrency,
        max_tries: int,
        run_try: RunTry,
        complete: Complete,
        abandon: Abandon,
        progress: Callable[[int, int], None],
        group_timeout_s: float | None = None,
        judge: Judge | None = None,
        credit: CreditRules | None = None,
    ) -> None:
        """max_tries: the most tries of one rollout that fails by errors of the environment.

        progress: called with how many rollouts of a request are decided, and how many it has begun.
        group_timeout_s: the time of a group while all its rollouts are at the app; None: no limit.
        judge: None if rollouts are not judged. credit: as in `build_batch`.
        """
        self.concurrency = concurrency
        self._job_id = job_id
        self._max_tries = max_tries
        self._run_try = run_try
        self._complete = complete
        self._abandon = abandon
        self._progress = progress
        self._group_timeout_s = group_timeout_s
        self._judge = judge
        self.credit = credit or CreditRules()
        self.open_requests = 0
        """Requests that are being collected now."""

    async def collect(
        self, request: CollectRequest, prior: PriorProgress, *, priority: int = 0
    ) -> RequestResult | EnvironmentBroken:
        """Run the missing rollouts of a request. priority: its rank among the job's requests; lower goes first."""
        runner = RequestRunner(
            self._job_id,
            request,
            prior,
            priority=priority,
            concurrency=self.concurrency,
            max_tries=self._max_tries,
            run_try=self._run_try,
            complete=self._complete,
            abandon=self._abandon,
            progress=self._progress,
            group_timeout_s=self._group_timeout_s,
            judge=self._judge,
            credit=self.credit,
        )
        self.open_requests += 1
        try:
            return await runner.run()
        finally:
            self.open_requests -= 1
