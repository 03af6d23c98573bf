"""The real `synthd judge`, asked over the real bus, with a scripted judge behind it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.rpc import JUDGE, ask
from synth.bus.server.embedded import free_port
from synth.ids import new_org_id
from synth.judging.contract import JudgeAnswer, JudgeRollouts, RolloutToJudge
from synth.judging.settings import Criterion, JudgeModel, Judging, Rubric
from synth.transcripts.transcript import TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn
from tests.service.process import running

POLITE = Criterion(id="polite", description="The reply is polite.")
RUBRIC = Rubric(
    event=[POLITE], outcome=[POLITE, Criterion(id="done", description="It is done.", weight=3, scale="binary")]
)


def transcript(*replies: str, reward: float = 1.0) -> Transcript:
    """A conversation in which the model said this."""
    turns = [
        TranscriptTurn(
            continues=n - 1 if n else None,
            kept=2 * n,
            messages=[{"role": "user", "content": f"question {n + 1}"}],
            reply={"role": "assistant", "content": reply},
        )
        for n, reply in enumerate(replies)
    ]
    steps = [TranscriptStep(obs={"n": n}, reward=reward, after_call=n + 1) for n in range(len(replies))]
    return Transcript(turns=turns, answer=TaskAppAnswer(status=200, steps=steps))


@dataclass
class Asker:
    """Asks as the collector does, in an organisation of its own."""

    bus: Connection
    blobs: BlobStore
    org: str
    model: JudgeModel

    async def question(
        self,
        *transcripts: Transcript,
        rubric: Rubric = RUBRIC,
        job: str = "job_1",
        judges: list[JudgeModel] | None = None,
        **judging: Any,
    ) -> JudgeRollouts:
        """A question about these rollouts."""
        rollouts: list[RolloutToJudge] = []
        for n, one in enumerate(transcripts):
            ref = await self.blobs.put_bytes(f"test/{self.org}/{job}/{n}-{hash(str(one)):x}", msgspec.json.encode(one))
            rollouts.append(RolloutToJudge(rollout_id=f"{job}_{n}_0", transcript=ref))
        settings = Judging(judges=judges or [self.model], **judging)
        return JudgeRollouts(org=self.org, job_id=job, judging=settings, rubric=rubric, rollouts=rollouts)

    async def ask(self, *transcripts: Transcript, within: float = 30.0, **settings: Any) -> JudgeAnswer:
        """Ask about these rollouts, and return the answer."""
        return await self.put(await self.question(*transcripts, **settings), within=within)

    async def put(self, question: JudgeRollouts, *, within: float = 30.0) -> JudgeAnswer:
        return await ask(self.bus, JUDGE, question, JudgeAnswer, within=within)


@dataclass
class RunningJudge:
    """A judge process; as a context it ends when it is left."""

    stack: ExitStack
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.process.wait(10)

    def __enter__(self) -> RunningJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


@contextmanager
def started(name: str, settings: Any, log: Path, **extra: str) -> Iterator[subprocess.Popen[bytes]]:
    """A service that may be killed before its end."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with running(name, settings, log, port=free_port(), **extra) as process:
            yield process
    except AssertionError:
        # One that was killed did not obey SIGTERM.
        if process is None or process.returncode != -signal.SIGKILL:
            raise


@pytest.fixture(scope="session")
def start_judge(settings_of, bus_admin: Connection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable]:
    """Starts a `synthd judge` with these settings; ended at the end of the session, or by its `close`."""
    folder: Path = tmp_path_factory.mktemp("judges")
    with ExitStack() as everything:

        def start(name: str, **changes: Any) -> RunningJudge:
            settings = settings_of("judge").model_copy(update={"replica": f"judge-{name}"})
            extra: dict[str, Any] = {"SYNTH_ALLOW_LOOPBACK": "1", "SYNTH_JUDGE_BREAKER_S": "2", **changes}
            told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in extra.items()}
            own = everything.enter_context(ExitStack())
            return RunningJudge(own, own.enter_context(started("judge", settings, folder / f"{name}.log", **told)))

        yield start


@pytest.fixture
async def asker_of(bus_as, blobs) -> Callable:
    """Makes an asker of an organisation of its own, whose judge is at this URL."""

    async def make(url: str, *, service: str = "rollouts", **model: Any) -> Asker:
        return Asker(await bus_as(service), blobs, new_org_id(), JudgeModel(model="scripted", url=url, **model))

    return make
