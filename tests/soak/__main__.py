"""Two of every service and three nats-servers under seeded faults, and a check of all that the log says afterwards.

.venv/bin/python -m tests.soak [--minutes 5 | --faults 200] [--seed 0] [--folder DIR] [--without GUARD]

Jobs of every kind run meanwhile. After the time, or the last fault, the jobs that run are waited for. Without one of
its guards (`tests.soak.unguarded`) the platform must break a promise. Exit code 1: a promise was broken, and each line
says which, and of which job; or the run was not over within its deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from synth.blobs import BlobCorrupt, BlobMissing
from synth.bus.recorded import Recorded
from synth.bus.replay import replay, replay_messages
from synth.bus.server.topology import DEAD
from synth.events import ModelPublished, RolloutBatched
from synth.jobs.lifecycle import TERMINAL_FACTS
from synth.runtime.process_end import run_and_end
from synth.trainer.errors import TrainingFailed
from synth.trajectories import RolloutBatch
from synth.transcripts.batch_header import BatchMeta
from tests.chaos.replay import differing_files
from tests.soak.cluster import SoakCluster
from tests.soak.deadline import CLEANING_S, ends_within
from tests.soak.faults import KINDS, Choice, Fault, draw, striking
from tests.soak.history import JobHistory, Violation, check_job, check_log
from tests.soak.references import check_blobs
from tests.soak.unguarded import GUARDS
from tests.soak.workload import Log, Workload

#: Faults that there are at a time, and the pause between the beginnings of two, in seconds.
_AT_ONCE = 2
_PAUSE_S = (1.0, 4.0)
#: Until the next look for a victim when all were busy.
_BUSY_S = 0.1
_REPLAYED = 3
#: How long a fault may take, on average, with the wait until a server of the bus has caught up.
_FAULT_S = 20.0
_TELLING_S = 30.0
_CHECKING_S = 3.0
_TOLD_TO_END = 128 + signal.SIGTERM

console = Console(width=140)


@dataclass
class Storm:
    """The faults of a run. done: those that were taken back."""

    rng: random.Random
    choice: Choice
    done: list[Fault] = field(default_factory=list[Fault])
    _struck: Counter[str] = field(default_factory=Counter[str])
    _busy: set[str] = field(default_factory=set[str])

    async def blow(
        self, cluster: SoakCluster, *, minutes: float | None, faults: int | None, stop: asyncio.Event
    ) -> None:
        """Strike until the time is over, so many faults were done, or `stop`; all are taken back then."""
        ends = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
        room = asyncio.Semaphore(_AT_ONCE)
        begun = 0
        async with asyncio.TaskGroup() as strikes:
            while time.monotonic() < ends and (faults is None or begun < faults) and not stop.is_set():
                await room.acquire()
                fault = draw(self.rng, self.choice, self._struck, self._busy)
                if fault is None:
                    room.release()
                    await asyncio.sleep(_BUSY_S)
                    continue
                begun += 1
                self._struck[fault.kind] += 1
                self._busy.add(fault.victim)
                strikes.create_task(self._strike(cluster, fault, room))
                await asyncio.sleep(self.rng.uniform(*_PAUSE_S))

    async def _strike(self, cluster: SoakCluster, fault: Fault, room: asyncio.Semaphore) -> None:
        console.print(f"[dim]{time.strftime('%H:%M:%S')}  {fault}")
        try:
            async with striking(cluster, fault):
                await asyncio.sleep(fault.seconds)
            self.done.append(fault)
        finally:
            self._busy.discard(fault.victim)
            room.release()


@dataclass(frozen=True)
class Plan:
    """Of a run: how long its faults go on, or how many there are; the guard that the services lack, "" for none.

    patience_s: for all that is not the faults, the start of the cluster and the end of the last jobs above all.
    until_violation: the first promise that an ended job's log breaks ends the run.
    """

    seed: int
    minutes: float | None
    faults: int | None
    without: str
    patience_s: float
    until_violation: bool

    @property
    def deadline_s(self) -> float:
        """Seconds after which the run is given up."""
        return self.patience_s + (60 * self.minutes if self.minutes else _FAULT_S * (self.faults or 0))


@dataclass
class Run:
    """One run, as far as it has come. stage: what it does now."""

    plan: Plan
    cluster: SoakCluster
    storm: Storm
    workload: Workload
    log: Log
    stage: str = "the cluster starts"
    begun: float = field(default_factory=time.monotonic)
    found: list[Violation] = field(default_factory=list[Violation])
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def go(self) -> None:
        """Start, strike, and judge; what is broken is in `found`."""
        await self.cluster.start()
        reading = asyncio.create_task(self.log.keep_reading(self.cluster))
        await self.workload.prepare()
        self._now("the faults go on")
        submitting = asyncio.create_task(self.workload.keep_submitting(self.stop))
        checking = asyncio.create_task(self._check_ended()) if self.plan.until_violation else None
        plan = self.plan
        await self.storm.blow(self.cluster, minutes=plan.minutes, faults=plan.faults, stop=self.stop)
        self.stop.set()
        self._now("no more faults, the last jobs end")
        if not self.found:
            await submitting
        submitting.cancel()
        if checking is not None:
            checking.cancel()
        # The logs of tasks may still be announced: only what was seen before the replay must be in it.
        seen = list(self.log.seen)
        facts = await replay(self.cluster.bus, ["*.*.*.*"])
        write_log(self.cluster.folder / "facts.jsonl", facts)
        self._now("all that the log says is checked")
        if not self.found:
            self.found += await judge(self.cluster, self.workload, facts, seen)
        reading.cancel()
        _report(self.storm, self.workload, facts, self.cluster)

    async def keep_telling(self) -> None:
        """Say how far the run is, again and again, until cancelled."""
        while True:
            await asyncio.sleep(_TELLING_S)
            console.print(f"[dim]{time.strftime('%H:%M:%S')}  {self.summary()}; {self.stage}")

    def summary(self) -> str:
        """The run in one line."""
        kinds = len({fault.kind for fault in self.storm.done})
        ended = sum(fact.type in TERMINAL_FACTS and fact.key in self.workload.kinds for fact in self.log.seen)
        return (
            f"seed {self.plan.seed}: {(time.monotonic() - self.begun) / 60:.1f} minutes, {len(self.storm.done)} faults "
            f"of {kinds} kinds, {ended} of {len(self.workload.kinds)} jobs ended, {len(self.log.seen)} facts, "
            f"{len(self.found)} violations"
        )

    async def _check_ended(self) -> None:
        """Look at each job when it has ended, and at the log, until something is broken."""
        done: set[str] = set()
        while not self.found:
            await asyncio.sleep(_CHECKING_S)
            seen = list(self.log.seen)
            self.found += check_log(seen, ()) + self.workload.lateness() + self.cluster.greedy.check(seen)
            ended = {fact.key for fact in seen if fact.type in TERMINAL_FACTS}
            for job in ended & set(self.workload.expected) - done:
                done.add(job)
                its = [fact for fact in seen if fact.key == job]
                batches = await _batches(self.cluster, its)
                self.found += check_job(JobHistory(job, its, batches, self.workload.expected[job]))
        self.stop.set()

    def _now(self, stage: str) -> None:
        self.stage = stage
        console.print(f"{time.strftime('%H:%M:%S')}  {stage}")


async def run(folder: Path, plan: Plan) -> Run:
    """Run the cluster, the jobs and the faults, within the plan's deadline."""
    rng = random.Random(plan.seed)
    cluster = SoakCluster(folder, plan.without)
    guard = GUARDS.get(plan.without)
    choice = Choice(guard.faults, guard.victims, guard.at_least_s) if guard else Choice(sorted(KINDS))
    log = Log()
    workload = Workload(cluster, log, random.Random(rng.random()))
    if plan.without == "retries":
        workload.retries = 0
    if guard and guard.jobs:
        workload.turns = guard.jobs
    if guard and guard.job_s:
        workload.job_s = guard.job_s
    its = Run(plan, cluster, Storm(random.Random(rng.random()), choice), workload, log)
    # Nothing that was started outlives the harness.
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    telling = asyncio.create_task(its.keep_telling())
    try:
        async with asyncio.timeout(plan.deadline_s):
            await its.go()
    except* TimeoutError as errors:
        causes = "; ".join(str(error) or type(error).__name__ for error in errors.exceptions)
        what = f"after {time.monotonic() - its.begun:.0f} s of {plan.deadline_s:.0f}, when {its.stage}: {causes}"
        its.found.append(Violation("a run ends in its time", "all", what))
    finally:
        telling.cancel()
        await cluster.stop()
    return its


def write_log(file: Path, facts: Sequence[Recorded]) -> None:
    """Write the whole log, a fact a line, for whoever looks for the cause of a violation."""
    with file.open("wb") as out:
        for fact in facts:
            said = {"seq": fact.seq, "time": fact.time, "type": fact.type, "key": fact.key, "event": fact.event}
            out.write(msgspec.json.encode(said) + b"\n")


async def judge(
    cluster: SoakCluster, workload: Workload, facts: Sequence[Recorded], seen: Sequence[Recorded]
) -> list[Violation]:
    """Everything that the log, the store and the models say against the platform."""
    found = check_log(facts, seen)
    found += workload.lateness()
    by_job = {job: [fact for fact in facts if fact.key == job] for job in workload.expected}
    found += cluster.greedy.check(facts)
    submitted = [fact for fact in facts if fact.type == "job.created" and fact.org != cluster.greedy.org]
    unknown = {fact.key for fact in submitted} - set(by_job)
    found += [Violation("a submission is one job", job, "nobody submitted it") for job in unknown]
    for job, its in by_job.items():
        batches = await _batches(cluster, its)
        found += check_job(JobHistory(job, its, batches, workload.expected[job]))
    found += await check_blobs(facts, cluster.blobs)
    for letter in await replay_messages(cluster.bus.nc, ["dead.>"], stream=DEAD):
        reason = (letter.headers or {}).get("Synth-Reason", "")
        found.append(Violation("nothing is a dead letter", letter.subject, reason))
    finished = [job for job, its in by_job.items() if workload.kinds[job] in ("rl", "paused") and _published(its)]
    for job in finished[:_REPLAYED]:
        try:
            differ = await differing_files(by_job[job], cluster.blobs, cluster.folder / "replays" / job)
        except (TrainingFailed, BlobMissing, BlobCorrupt) as error:
            differ = [str(error)]
        found += [Violation("a model is the replay of its log", job, name) for name in differ]
    console.print(f"{len(finished[:_REPLAYED])} models were trained again from their logs")
    return found


def _published(facts: Sequence[Recorded]) -> bool:
    return any(isinstance(fact.event, ModelPublished) for fact in facts)


async def _batches(cluster: SoakCluster, facts: Sequence[Recorded]) -> dict[int, BatchMeta]:
    named = [fact.event for fact in facts if isinstance(fact.event, RolloutBatched)]
    found: dict[int, BatchMeta] = {}
    for batched in named:
        # What is not there is found by who checks the blobs.
        with contextlib.suppress(BlobMissing, BlobCorrupt):
            found[batched.iteration] = RolloutBatch.from_bytes(await cluster.blobs.get_bytes(batched.batch)).meta
    return found


def _report(storm: Storm, workload: Workload, facts: Sequence[Recorded], cluster: SoakCluster) -> None:
    table = Table("fault", "times", title=f"{len(storm.done)} faults")
    for kind, times in sorted(Counter(fault.kind for fault in storm.done).items()):
        table.add_row(kind, str(times))
    console.print(table)
    kinds = Counter(workload.kinds.values())
    console.print(f"{len(workload.kinds)} jobs: {', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}")
    types = Counter(fact.type for fact in facts)
    told = ("job.started", "train.step", "rollout.completed", "rollout.batch", "checkpoint.saved", "rollout.failed")
    console.print(f"{len(facts)} facts: {', '.join(f'{types[name]} {name}' for name in told)}")
    for process in cluster.services:
        if process.ends:
            console.print(f"[yellow]{process.name} ended by itself {len(process.ends)} times: {process.ends}")


def main() -> int:
    """Run, and print what was broken; exit code 1 where something was."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, help="how long the faults go on")
    options.add_argument("--faults", type=int, help="how many there are")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--folder", type=Path, help="of the cluster's data and logs; kept")
    options.add_argument("--without", choices=sorted(GUARDS), default="", help="the guard that the services lack")
    options.add_argument("--patience", type=float, default=15.0, help="minutes for all but the faults; then it fails")
    options.add_argument("--until-violation", action="store_true", help="end at the first promise that is broken")
    chosen = options.parse_args()
    minutes = chosen.minutes if chosen.minutes or chosen.faults else 5.0
    with tempfile.TemporaryDirectory(prefix="soak") as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        patience, until = 60 * chosen.patience, chosen.until_violation
        plan = Plan(chosen.seed, minutes, chosen.faults, chosen.without, patience, until)
        with ends_within(plan.deadline_s + CLEANING_S):
            try:
                its = asyncio.run(run(folder.absolute(), plan))
            except asyncio.CancelledError:
                console.print("[red]told to end")
                return _TOLD_TO_END
    for violation in its.found:
        console.print(f"[red]{violation}", soft_wrap=True)
    console.print(its.summary())
    return 1 if its.found else 0


if __name__ == "__main__":
    run_and_end(lambda: sys.exit(main()))
