"""A task app and the environment keys that may be tried on it.

Invariant. A key is sent to the origin that it belongs to and to no other. One that has none yet is sent to the first
origin alone that the API key which stored it names, and belongs there if it opens the app.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from synth.bus.kv.environment_keys import EnvironmentKey
from synth.bus.kv.secrets import SecretStore
from synth.bus.rpc import KeyResult, TaskAppReport
from synth.environment_keys import plain_http_refused
from synth.errors import Conflict, Problem, UserError
from synth.outbound.http_guard import origin_of
from synth.verifier.settings import VerifierSettings
from synth.verifier.task_app import TaskAppCheck, VerifiedTaskApp


@dataclass(frozen=True)
class KeyedTaskApp:
    """A task app of an organisation. by: the id of the API key that made the request."""

    secrets: SecretStore
    check: TaskAppCheck
    settings: VerifierSettings
    org: str
    by: str

    async def verify(self, *, rubric_of: int | None = None) -> VerifiedTaskApp:
        """Open the task app with one of its keys. Raises `UserError` if it cannot be used.

        rubric_of: a seed whose task's rubric is fetched, too. All calls together have a deadline, for any number of
        keys and however slowly the app answers.
        """
        keys = await self._keys()
        calls = (2 if rubric_of is None else 3) + any(key.is_offered_once for key in keys)
        within = self.settings.task_app_within_s(calls)
        try:
            async with asyncio.timeout(within):
                app = await self._check.run(keys, rubric_of=rubric_of)
        except TimeoutError as error:
            raise UserError(self._too_slow(len(keys), within)) from error
        return replace(app, key_id=await self._bind(keys, app.key_id))

    async def report(self) -> TaskAppReport:
        """Return the result of each key that was tried, for a client that waits."""
        try:
            keys = await self._keys()
            report = await self._check.report(keys, budget_s=self.settings.ask_budget_s)
            for attempt in report.attempts:
                if attempt.ok:
                    await self._bind(keys, attempt.key_id)
        except UserError as error:
            return TaskAppReport(
                key_ids=[], attempts=[KeyResult(key_id=None, ok=False, path="", status=None, reason=str(error))]
            )
        return report

    @property
    def _check(self) -> TaskAppCheck:
        return replace(self.check, may_send=self._use_offer)

    async def _use_offer(self, key: EnvironmentKey) -> bool:
        origin = origin_of(self.check.url)
        return origin is not None and await self.secrets.use_offer(self.org, key, origin)

    async def _keys(self) -> list[EnvironmentKey]:
        """Return the keys to try, best last. Raises `UserError` if the app's keys may not be sent to its address."""
        origin = origin_of(self.check.url)
        if origin is None:
            return []
        keys = await self.secrets.environment_keys_for(self.org, origin, by=self.by)
        if keys:
            allowed = self.settings.allow_plain_http_keys
            problem = await plain_http_refused(self.check.url, self.settings.guard, allowed=allowed)
            if problem is not None:
                raise UserError(problem)
        return keys

    def _too_slow(self, keys: int, within: float) -> Problem:
        return Problem(
            what=f"the task app was not verified within {within:g} s (SYNTH_VERIFY_WITHIN_S); {keys} keys are stored "
            "for it",
            expected="one of its keys to open it, and answers that come at once",
            fix="remove the keys that it refuses with DELETE /api/environment-keys, let it answer faster, then submit "
            "the job again",
            where=self.check.url,
        )

    async def _bind(self, keys: list[EnvironmentKey], opened: str | None) -> str | None:
        """Make the key that has opened the app the app's own; returns its id. Raises `UserError`."""
        key = next((key for key in keys if key.id == opened), None)
        origin = origin_of(self.check.url)
        if key is None or origin is None:
            return opened
        try:
            return (await self.secrets.bind_environment_key(self.org, key, origin)).id
        except Conflict as error:
            problem = Problem(
                what=str(error),
                expected="a key that belongs to this task app",
                fix="store it for this address with POST /api/environment-keys, then submit the job again",
                where=self.check.url,
            )
            raise UserError(problem) from error
