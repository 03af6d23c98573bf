"""The collapse watch of an attempt: it checks each step of a job, and announces each of its warnings once.

A warning is announced after its step; the action that it demands (a pause, a stop, a success) is taken at once.
"""

from __future__ import annotations

from collections import defaultdict

from synth.bus.connection import Connection
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import replay
from synth.events import JobPaused, TrainStep, TrainWarned
from synth.methods.rl import RlJob
from synth.runtime import logs
from synth.trainer.collapse.rules import CollapseDetector

log = logs.get("watch")

#: The actions that a warning may demand of the job, the most urgent first.
_DEMANDS = ("stop", "finish", "pause")


class CollapseWatch:
    """Watches the steps of one attempt.

    To be made after this attempt's own `job.started`, when no earlier attempt can add to the log any more.
    """

    def __init__(self, bus: Connection, fence: Fence, job: RlJob) -> None:
        self._bus = bus
        self._fence = fence
        self._detector = CollapseDetector(
            job.watch,
            solved_after=job.solved_after,
            stages=1 + len(job.curriculum),
            taught=job.distillation is not None,
        )
        self._publisher = Publisher(bus)
        self._unannounced: defaultdict[int, list[TrainWarned]] = defaultdict(list)
        self._announced: set[tuple[str, int]] = set()
        self._demands: list[TrainWarned] = []

    async def catch_up(self) -> None:
        """Check every step of the log, and announce the warnings that an attempt died before it announced."""
        fence = self._fence
        facts = ("train.step", "train.warned", "job.paused")
        for recorded in await replay(self._bus, [f"{fact}.{fence.org}.{fence.job_id}" for fact in facts]):
            match recorded.event:
                case TrainStep() as step:
                    self.add_step(step)
                case TrainWarned() as warned:
                    self._announced.add((warned.rule, warned.step))
                case JobPaused():
                    # The user has resumed the job all the same.
                    self._demands = [warned for warned in self._demands if warned.action != "pause"]
                case _:
                    pass
        for step in sorted(self._unannounced):
            await self.announce(step)

    def add_step(self, event: TrainStep) -> None:
        """Check the next step."""
        for warned in self._detector.add(event.step, event.values):
            self._unannounced[event.step].append(warned)
            if warned.action in _DEMANDS:
                self._demands.append(warned)

    async def announce(self, step: int) -> None:
        """Announce the warnings of a step that is in the log."""
        for warned in self._unannounced.pop(step, []):
            if (warned.rule, warned.step) in self._announced:
                continue
            log.warning("collapse", rule=warned.rule, step=warned.step, problem=warned.problem.text())
            await self._publisher.fenced(warned, fence=self._fence, id=f"{warned.rule}:{warned.step}")
            self._announced.add((warned.rule, warned.step))

    async def announce_end(self, step: int) -> TrainWarned | None:
        """Announce and return the warning of a job that has done its last step and has trained nothing."""
        warned = self._detector.at_the_end(step)
        if warned is not None:
            self._unannounced[step].append(warned)
            await self.announce(step)
        return warned

    @property
    def demand(self) -> TrainWarned | None:
        """The warning that demands an end or a pause of the job: a stop comes first, then its success."""
        return min(self._demands, key=lambda warned: _DEMANDS.index(warned.action), default=None)

    @property
    def stage(self) -> int:
        """The seeds that the next iterations play; see `CollapseDetector.stage`."""
        return self._detector.stage
