"""The environment key that a job's rollouts are played with."""

from __future__ import annotations

from synth.bus.history.job_log import JobHistory
from synth.bus.kv.secrets import SecretStore
from synth.environment_keys import plain_http_refused
from synth.errors import Permanent
from synth.events import JobVerified
from synth.outbound.http_guard import origin_of
from synth.rollouts.settings import RolloutsSettings


async def environment_key(store: SecretStore, history: JobHistory, url: str, settings: RolloutsSettings) -> str | None:
    """Return the key that the task app at `url` accepted when the job was verified; None if the app needs none.

    Returns None also if the key was removed since. Raises `Permanent` if the key may not be sent to `url`.
    """
    id = history.need(JobVerified).task_key_id
    if id is None:
        return None
    key = await store.environment_key(history.org, id)
    if key is None:
        return None
    if key.origin != origin_of(url):
        raise Permanent(f"the environment key {id} does not belong to the task app's address {origin_of(url)}")
    problem = await plain_http_refused(url, settings.guard, allowed=settings.allow_plain_http_keys)
    if problem is not None:
        raise Permanent(problem.text())
    return key.key
