"""The progress of a job: a fold over its events, without any drawing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from synth.api.job_clock import TURN_WAIT, JobClock
from synth.api.schemas import EventView
from synth.cli.tui.output import number
from synth.cli.tui.series import Series
from synth.console.errors import ExitCode
from synth.errors import Problem
from synth.jobs.lifecycle import TERMINAL, TRANSITIONS, State

#: The stages that every job goes through, as people read them, with the facts that reach them.
STAGES: tuple[tuple[str, str], ...] = (
    ("created", "job.created"),
    ("validated", "job.validated"),
    ("verified", "job.verified"),
    ("started", "job.started"),
)
#: The values of a step that say the most, in the order in which they are shown.
HEADLINES = ("reward_mean", "loss", "validation_loss", "tokens_per_second", "staleness_mean")
#: The metric that an evaluation is judged by.
EVALUATION = "eval.reward_mean"

#: A batch of rollouts: its mode, "train" or "eval", and its iteration.
Batch = tuple[str, int]


@dataclass
class Progress:
    """The state of a job after its events so far. Times are unix seconds; `reached`: lifecycle fact → when.

    clock: the time that it was queued and ran.

    step: the last durable one. trained: the newest one of this attempt. shown: the newest one of any attempt, so that a
    step that is trained again, or that becomes durable, is not taken for another one. steps_seen: the first and the
    last step that was seen, with their times; began: the step after which this attempt began, and when, if that was
    seen. failures: counts of failed rollouts by their problem. evaluated_step: the step of the last evaluated model,
    0 for the source; None before. away: why the cluster cannot be reached now, "" while it can.
    """

    job_id: str
    state: State | None = None
    kind: str = ""
    name: str = ""
    source: str = ""
    model: str | None = None
    reached: dict[str, float] = field(default_factory=dict[str, float])
    clock: JobClock = field(default_factory=JobClock)
    step: int = 0
    trained: int = 0
    shown: int = 0
    steps: int = 0
    attempt: int = 0
    steps_seen: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    began: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    reward: Series = field(default_factory=Series)
    loss: Series = field(default_factory=Series)
    values: dict[str, float] = field(default_factory=dict[str, float])
    validation: Series = field(default_factory=Series)
    evaluation: Series = field(default_factory=Series)
    evaluated_step: int | None = None
    wanted: dict[Batch, int] = field(default_factory=dict[Batch, int])
    done: dict[Batch, int] = field(default_factory=dict[Batch, int])
    failures: Counter[str] = field(default_factory=Counter[str])
    waiting: str = ""
    warning: str = ""
    away: str = ""
    asked_to_resume: bool = False

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    @property
    def collecting(self) -> tuple[str, int, int] | None:
        """The oldest batch that is not whole: "train" or "eval", rollouts done, rollouts wanted."""
        for batch, wanted in list(self.wanted.items()):
            if (done := self.done.get(batch, 0)) < wanted:
                return batch[0], done, wanted
        return None

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the last step, from the newest one on, at the pace so far; None while there is no pace."""
        return None if self.pace is None or self.trained >= self.steps else self.pace * (self.steps - self.trained)

    @property
    def pace(self) -> float | None:
        """Seconds of a step: from the first that was seen to the newest. Of one step alone, from the start on."""
        seen = self.steps_seen if len(self.steps_seen) > 1 else [*self.began, *self.steps_seen]
        if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return None
        (first, since), (last, now) = seen
        return (now - since) / (last - first)

    @property
    def failed(self) -> int:
        """Rollouts that failed."""
        return self.failures.total()

    def apply(self, event: EventView) -> None:
        """Take in the next event."""
        if event.type != "train.step":
            self.clock = self.clock.add(event.type, event.time)
        if event.type.startswith("job."):
            self._lifecycle(event)
        else:
            self._measurement(event)

    def _lifecycle(self, event: EventView) -> None:
        # A watcher may begin in the middle, so a fact sets the state without a check of the transition.
        state = next((s for (_, fact), s in TRANSITIONS.items() if fact == event.type), None)
        before = self.state
        # The next attempt of a job that is to stop only ends it.
        if state is not None and not (state is State.STARTED and before in (State.CANCELLING, State.PAUSING)):
            self.state = state
        self.reached[event.type] = event.time.timestamp()
        data = _fields(event)
        match event.type:
            case "job.created":
                self.name = str(data.get("name") or data.get("config_name") or "")
            case "job.validated":
                job: dict[str, Any] = data.get("job") or {}
                self.kind = str(job.get("kind") or "")
                self.source = str(job.get("model") or "")
                self.steps = int(job.get("iterations") or job.get("steps") or 0)
                if self.kind == "eval":
                    self.wanted[("eval", 0)] = len(job.get("seeds") or [])
                self.warning = str((data.get("warnings") or [""])[-1])
            case "job.verified":
                self.waiting = ""
            case "job.started":
                self.attempt = int(data.get("attempt") or 1)
                self.waiting = ""
                # Steps after the last checkpoint are trained again.
                self.trained = self.step
                self.began = [(self.step, event.time.timestamp())]
                if self.attempt > 1 and before in (State.STARTED, State.CANCELLING, State.PAUSING):
                    self.warning = f"attempt {self.attempt}: an earlier owner of the job died"
            case "job.resumed":
                self.asked_to_resume = True
            case "job.paused" | "job.parked":
                # The pace before the pause predicts nothing about the time left.
                self.steps_seen, self.began, self.waiting = [], [], ""
            case "job.succeeded":
                self.model = data.get("model")
            case _:
                pass

    def _measurement(self, event: EventView) -> None:
        data = _fields(event)
        match event.type:
            case "train.step" if data:
                self.step = int(data["step"])
                turn_wait_s = _numbers(data.get("values")).get(TURN_WAIT, 0.0)
                self.clock = self.clock.add_step(self.step, event.time, turn_wait_s=turn_wait_s)
                self._take_step(self.step, data, event)
                self._forget_batches("train", self.step)
            case "train.progressed" if data:
                if data.get("data"):
                    self.waiting = data_progress(data["data"])
                for step in data["steps"]:
                    self._take_step(int(step["step"]), {**step, "of": data["of"]}, event)
            case "rollout.requested":
                self.wanted[self._batch_of(data)] = len(data.get("seeds") or []) * int(data.get("group_size") or 1)
            case "rollout.completed":
                self._count_rollout(data)
            case "rollout.failed":
                self._count_rollout(data)
                what = failure(event)
                self.failures[what] += 1
                times = self.failures[what]
                self.warning = f"{'a rollout' if times == 1 else f'{times} rollouts'} failed: {what}"
            case "rollout.blocked":
                self.warning = f"rollouts stopped: {(data.get('problem') or {}).get('what', '')}"
            case "eval.completed":
                values = _numbers(data.get("values"))
                # An evaluation of which nothing came back has no reward.
                if "reward_mean" in values:
                    self.evaluation.add(values["reward_mean"])
                    self.evaluated_step = data.get("step")
                self._forget_batches("eval", int(data.get("iteration") or 0))
            case "train.warned":
                self.warning = _warning_text(data)
            case "train.resumed":
                self.trained = self.step = max(self.step, int(data.get("step") or 0))
                self.steps_seen, self.began = [], [(self.step, event.time.timestamp())]
                if self.state is State.STARTED and not self.asked_to_resume:
                    self.warning = f"resumed behind step {data.get('step')} by attempt {data.get('attempt')}"
                self.asked_to_resume = False
            case "queue.waiting":
                self.waiting = _waiting(data)
            case "policy.loaded" if self.state is State.VERIFIED:
                self.waiting = ""
            case _:
                pass

    def _take_step(self, step: int, data: dict[str, Any], event: EventView) -> None:
        self.steps, self.waiting = int(data["of"]), ""
        if step > self.trained:
            self.trained = step
            self.steps_seen[1:] = [(step, event.time.timestamp())]
        if step <= self.shown:
            return
        self.shown = step
        self.values = _numbers(data.get("values"))
        if "reward_mean" in self.values:
            self.reward.add(self.values["reward_mean"])
        if "loss" in self.values:
            self.loss.add(self.values["loss"])
        if "validation_loss" in self.values:
            self.validation.add(self.values["validation_loss"])

    def _count_rollout(self, data: dict[str, Any]) -> None:
        batch = self._batch_of(data)
        self.done[batch] = self.done.get(batch, 0) + 1
        if batch in self.wanted:
            # Replacements of groups without a signal continue the numbers beyond the requested count.
            self.wanted[batch] = max(self.wanted[batch], int(data.get("index") or 0) + 1)

    def _batch_of(self, data: dict[str, Any]) -> Batch:
        """Return the batch of a rollout's event; an evaluation job is one batch."""
        return ("eval", 0) if self.kind == "eval" else (str(data.get("mode")), int(data.get("iteration") or 0))

    def _forget_batches(self, mode: str, until: int) -> None:
        for counts in (self.wanted, self.done):
            for batch in [b for b in counts if b[0] == mode and b[1] <= until]:
                del counts[batch]


def exit_code(state: str | None) -> ExitCode:
    """Return the exit code of a finished job."""
    match state:
        case State.SUCCEEDED:
            return ExitCode.OK
        case State.CANCELLED:
            return ExitCode.JOB_CANCELLED
        case _:
            return ExitCode.JOB_FAILED


def failure(event: EventView) -> str:
    """Return why a rollout failed; "" for any other event."""
    return str((_fields(event).get("problem") or {}).get("what", "")) if event.type == "rollout.failed" else ""


def describe_new(event: EventView, *, shown: int) -> list[str]:
    """Return the lines of an event without those already printed. shown: the newest step that was printed."""
    data = _fields(event)
    match event.type:
        case "train.step" if data and int(data["step"]) <= shown:
            return []
        case "rollout.completed" | "rollout.judged":
            # A job has thousands of rollouts; only failed ones are worth a line while it runs.
            return []
        case "train.progressed" if data and data["steps"]:
            new = [step for step in data["steps"] if int(step["step"]) > shown]
            return [f"{_step(step, data)} (not saved yet)" for step in new]
        case _:
            line = describe(event)
            return [] if line is None else [line]


def describe(event: EventView) -> str | None:
    """Return an event as one line of text; None for events that only show that the job is alive."""
    data = _fields(event)
    values = _numbers(data.get("values"))
    match event.type:
        case "watch.heartbeat" | "blob.expired":
            return None
        case "rollout.completed" | "rollout.failed" if data:
            return _rollout_text(event.type, data)
        case "train.step" if data:
            return _step(data, data)
        case "train.progressed" if data and data["steps"]:
            return f"{_step(data['steps'][-1], data)} (not saved yet)"
        case "train.progressed" if data and data.get("data"):
            return data_progress(data["data"])
        case "eval.completed":
            shown = " ".join(f"{n}={number(values[n])}" for n in ("reward_mean", "reward_std") if n in values)
            shown += f" rollouts_failed={number(values['rollouts_failed'])}" if values.get("rollouts_failed") else ""
            of = "" if data.get("step") is None else f" of step {data['step']}"
            return f"evaluation{of} over {data.get('instances')} instances: {shown}"
        case "job.succeeded":
            why = f" ({data['reason']})" if data.get("reason") else ""
            return f"succeeded{': ' + str(data['model']) if data.get('model') else ''}{why}"
        case "job.rejected" | "job.refused" | "job.failed":
            problems = data.get("problems") or [data.get("problem") or {}]
            return f"{event.type.removeprefix('job.')}: " + " | ".join(str(p.get("what", "")) for p in problems)
        case "job.started" if int(data.get("attempt") or 1) > 1:
            return f"started again, attempt {data['attempt']}"
        case "job.paused":
            return f"paused after step {data.get('step')}" + (f": {data['reason']}" if data.get("reason") else "")
        case "job.parked":
            return f"waits until it is resumed: {(data.get('problem') or {}).get('what', '')}"
        case "train.warned":
            return f"warning: {_warning_text(data)}"
        case "train.resumed":
            return f"resumed behind step {data.get('step')}"
        case "checkpoint.saved":
            return f"checkpoint: every step up to {data.get('step')} is saved"
        case "policy.loaded":
            return f"policy {data.get('version')} serves on {data.get('replica')}"
        case "queue.waiting":
            return f"waiting: {_waiting(data)}"
        case "rollout.requested" if data:
            total = len(data.get("seeds") or ()) * int(data.get("group_size") or 1)
            batch = "an evaluation" if data.get("mode") == "eval" else f"iteration {data.get('iteration')}"
            return f"{total} rollouts of {batch} are requested"
        case "rollout.batch":
            groups = f"{data.get('groups_kept')} groups kept, {data.get('groups_dropped')} dropped"
            return f"batch {data.get('iteration')}: {data.get('sequences')} sequences, {groups}"
        case type:
            return type.replace(".", " ").replace("_", " ").removeprefix("job ")


_WAITS = {
    "validator": "for its configuration to be checked",
    "verifier": "for its task app, files and model to be checked",
    "inference": "for inference to load its model",
    "trainer": "for a trainer",
    "rollouts": "for a rollouts worker",
}


def waiting_text(need: str, pool: str, position: int) -> str:
    """Return the resource that a job waits for, and its place in the queue."""
    before = position - 1
    place = "it is next" if not before else f"{before} job{'s' * (before != 1)} before it"
    return f"{_WAITS.get(need, f'for {need}')}{'' if pool == 'default' else f' in pool {pool}'}, {place}"


def _waiting(data: dict[str, Any]) -> str:
    return waiting_text(str(data.get("need")), str(data.get("pool")), int(data.get("position") or 1))


def _rollout_text(type: str, data: dict[str, Any]) -> str:
    """Return a rollout's id without its job, its seed, its reward and its outcome."""
    name = "_".join(str(data.get("rollout_id", "")).rsplit("_", 2)[-2:])
    tries = int(data.get("tries") or 1)
    tried = f" after {tries} tries" if tries > 1 else ""
    if type == "rollout.failed":
        ended = "was late" if data.get("late") else "failed"
        return f"rollout {name} seed {data.get('seed')}: {ended}{tried}: {(data.get('problem') or {}).get('what', '')}"
    outcome = "ok" if data.get("outcome", "ok") == "ok" else "policy failed"
    return f"rollout {name} seed {data.get('seed')}: reward {_figure(data.get('reward'))} {outcome}{tried}"


def data_progress(data: dict[str, Any]) -> str:
    """Return the progress of reading a training dataset, as `tokenising 1.2 of 3.0 GB`."""
    of = int(data["of"])
    unit, name = next(((u, n) for u, n in ((10**9, "GB"), (10**6, "MB")) if of >= u), (1000, "kB"))
    doing = {"fetch": "fetching the dataset,", "tokenise": "tokenising"}.get(str(data["stage"]), str(data["stage"]))
    return f"{doing} {int(data['done']) / unit:.1f} of {of / unit:.1f} {name}"


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


def _step(step: dict[str, Any], data: dict[str, Any]) -> str:
    values = _numbers(step.get("values"))
    shown = " ".join(f"{n}={number(values[n])}" for n in HEADLINES if n in values)
    return f"step {step.get('step')}/{data.get('of')} {shown}".rstrip()


def _fields(event: EventView) -> dict[str, Any]:
    """Return the event's data; empty for an event that the gateway could not parse, and passes on as text."""
    return cast(dict[str, Any], event.data) if isinstance(event.data, dict) else {}


def _warning_text(data: dict[str, Any]) -> str:
    """Return the problem in a `train.warned`, with the expected value and the fix."""
    return msgspec.convert(data.get("problem") or {"what": ""}, Problem).text()


def _numbers(values: Any) -> dict[str, float]:
    """Numbers by name; null stands for NaN, which JSON does not have."""
    return {name: float("nan") if v is None else float(v) for name, v in (values or {}).items()}
