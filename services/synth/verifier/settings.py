"""Settings of the verifier."""

from __future__ import annotations

from pydantic import Field

from synth.bus.rpc import ANSWER_WITHIN_S
from synth.environment_keys import EnvironmentKeySettings
from synth.outbound.answer_memory import AnswerSettings
from synth.outbound.http_guard import GuardSettings
from synth.runtime.settings import ServiceSettings


class VerifierSettings(ServiceSettings, GuardSettings, EnvironmentKeySettings, AnswerSettings):
    """What verifying needs beside the shared settings."""

    jobs_at_once: int = 8
    """Jobs that one process verifies at the same time, in addition to jobs that wait for a file, by turns of their
    organisations; as many again for organisations without a job among them."""

    call_deadline_s: float = 10.0
    """Seconds within which a task app answers one call."""

    retry_for_s: float = 10.0
    """For how long a call to a task app that is away, answers 5xx or does not answer is made again, from when it first
    failed; `verify_within_s` bounds all calls together."""

    verify_within_s: float | None = Field(default=None, gt=0)
    """Seconds within which a job's task app has to be verified, with all keys that are stored for it; then the job is
    refused. By default the longest time that the calls of this job may take, retries included."""

    asks_at_once: int = 4
    """Task apps, and as many job files, that one process checks at the same time for waiting clients, by
    turns of their organisations; as many again for organisations without one among them."""

    ask_budget_s: float = Field(default=40.0, gt=0, le=ANSWER_WITHIN_S - 5)
    """Seconds for all of an organisation's environment keys, when a client waits: the gateway waits 50 for it."""

    file_wait_s: float = 3600.0
    """Seconds that a job waits for its files to be checked, counted from when it was validated. Images that are fetched
    take the longest (`SYNTH_IMAGES_DEADLINE_S`)."""

    renders_at_once: int = Field(default=2, ge=1)
    """Files whose rows one process renders at the same time with the template of a job's model, by turns of their
    organisations; one more for an organisation that has none of them. Each takes a core."""

    render_bytes_per_s: float = Field(default=20_000.0, gt=0)
    """The slowest rendering of a file's rows, in bytes each second: a file has a minute, and its size divided by this.
    Then the job is refused. The time grows with the square of a conversation's turns."""

    serve_replicas: int = 1
    """How many inference processes serve a job's policy."""

    task_check_s: float = Field(default=3600.0, gt=0)
    """The interval in seconds of the comparison of the queue with the tasks that live jobs have, which also runs at
    each start and after each new connection to the bus. A task that the bus has lost is queued again."""

    @property
    def answer_wait_s(self) -> float:
        """How long an answer may wait for memory, within the deadline of its call."""
        return min(self.answer_memory_wait_s, self.call_deadline_s / 2)

    def render_deadline_s(self, size: int) -> float:
        """Return the seconds within which the rows of a file of `size` bytes are rendered."""
        return 60.0 + size / self.render_bytes_per_s

    def task_app_within_s(self, calls: int) -> float:
        """Return the seconds for all calls to one task app, if one of its keys needs so many calls.

        A call that is made again may begin at the end of `retry_for_s`, so there is time for one more.
        """
        return self.verify_within_s or (calls + 1) * self.call_deadline_s + self.retry_for_s
