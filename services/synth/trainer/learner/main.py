"""The training process itself: `python -m synth.trainer.learner.main`, one JSON line in, JSON lines out.

The service starts it, feeds it and watches it; it knows neither bus nor HTTP. The messages are in `protocol.py`.

Where a recipe asks for several ranks, this process is rank 0 and starts the others, which run the very same code on the
same messages: what differs between ranks is in `Ranks`.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, NoReturn

import msgspec
import torch

from synth.events import Canary
from synth.trainer.config import Recipe, RlRecipe, SftRecipe, parse_recipe
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.canary import score_canary
from synth.trainer.learner.checkpoint import rng
from synth.trainer.learner.checkpoint.checkpoint import fingerprint
from synth.trainer.learner.data.sft_dataset import encode_file, load_tokenizer
from synth.trainer.learner.distributed.launcher import Followers
from synth.trainer.learner.distributed.process_group import ALONE, Ranks, join, listen
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.model.reference import load_reference
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.learner.sft import SftTrainer
from synth.trainer.learner.state import Resumed, Run
from synth.trainer.protocol import Done, Failed, Finish, Pause, Paused, Progressed, Ready, Start, Step, Stepped
from synth.trajectories import RolloutBatch

_PROGRESS_SECONDS = 0.5


class Parent:
    """The two pipes to the service, or to rank 0, to which a follower says nothing but why it fails."""

    def __init__(self, lines_in: IO[bytes], lines_out: IO[bytes]) -> None:
        self._out = lines_out
        self._speaking = threading.Lock()
        self._rank = int(os.environ.get("RANK", "0"))
        self._followers: Followers | None = None
        self._heard = b""
        self._in: queue.Queue[bytes] = queue.Queue()
        self._last_progress = 0.0
        threading.Thread(target=self._read, args=(lines_in,), daemon=True).start()

    def say(self, event: msgspec.Struct) -> None:
        if self._rank == 0:
            with self._speaking:
                self._write(event)

    def fail(self, failed: Failed) -> NoReturn:
        """Say why, as the last word of this process."""
        if failed.code == "internal" and self._followers is not None:
            self._followers.settle()
        self._end(failed)

    def join(self, recipe: Recipe) -> Ranks:
        """The group that trains this recipe, after `start` was heard; rank 0 starts the others."""
        if recipe.world_size == 1:
            return ALONE
        if self._rank:
            return join(self._rank, recipe.world_size, device=recipe.device, port=int(os.environ["MASTER_PORT"]))
        listening = listen()
        port: int = listening.getsockname()[1]
        self._followers = Followers(recipe.world_size, port=port, fail=self._end)
        self._followers.tell(self._heard)
        self.progress("join", 0, 1)
        return join(0, recipe.world_size, device=recipe.device, port=port, listening=listening)

    def _end(self, failed: Failed) -> NoReturn:
        with self._speaking:
            self._write(failed)
            os._exit(1)

    def _write(self, event: msgspec.Struct) -> None:
        self._out.write(msgspec.json.encode(event) + b"\n")
        self._out.flush()

    def progress(self, stage: str, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._last_progress >= _PROGRESS_SECONDS:
            self._last_progress = now
            self.say(Progressed(stage=stage, done=done, of=of))

    def hear(self) -> Start | Step | Pause | Finish:
        line = self._heard = self._in.get()
        if self._followers is not None:
            self._followers.tell(line)
        try:
            return msgspec.json.decode(line, type=Start | Step | Pause | Finish)
        except msgspec.DecodeError as error:
            raise TrainingFailed("bad_message", f"{error}: {line[:200]!r}") from error

    def has_spoken(self) -> bool:
        """Whether there is something to hear."""
        return not self._in.empty()

    def _read(self, lines_in: IO[bytes]) -> None:
        for line in lines_in:
            self._in.put(line)
        # The parent is gone: work that nobody will announce must not hold a GPU. Nothing durable is half-written.
        os._exit(3)


def main() -> NoReturn:
    """Speak the protocol on stdin and stdout until done; stray prints go to stderr."""
    lines_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    parent = Parent(sys.stdin.buffer, lines_out)
    _log_to_stderr()
    try:
        _warm_up()
        start = parent.hear()
        if not isinstance(start, Start):
            raise TrainingFailed("bad_message", "expected `start` first")
        if start.kind == "rl":
            train_rl(start, parse_recipe(start.recipe, RlRecipe), parent)
        else:
            train_sft(start, parse_recipe(start.recipe, SftRecipe), parent)
    except TrainingFailed as error:
        parent.fail(Failed(code=error.code, detail=error.detail))
    except (torch.OutOfMemoryError, MemoryError) as error:
        parent.fail(
            Failed(code="out_of_memory", detail=f"{error}; lower micro_batch_tokens or checkpoint activations"),
        )
    except Exception as error:  # noqa: BLE001  (the edge of the process: reported, and the exit code says so)
        traceback.print_exc()
        parent.fail(Failed(code="internal", detail=f"{type(error).__name__}: {error}"))
    lines_out.flush()
    # No interpreter teardown: the reader thread is still in a read of stdin.
    os._exit(0)


def _log_to_stderr() -> None:
    """What the algorithms choose, and why, for the service's log; of libraries only what is wrong."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    logging.getLogger("synth").setLevel(logging.INFO)


def _warm_up() -> None:
    """Import what every job needs, before the job is there."""
    import transformers.models.auto.modeling_auto
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401


def train_rl(start: Start, recipe: RlRecipe, parent: Parent) -> None:
    """RL: load, say ready, then a step for each batch that the parent sends, until it says finish, or pause."""
    work = Path(start.work_dir)
    ranks = parent.join(recipe)
    policy = _load(start, recipe, parent, dropout=False)
    reference = load_reference(policy, recipe, adapter_dir=_adapter_dir(start), ranks=ranks)
    policy.spread(ranks)
    trainer = RlTrainer(policy, recipe, reference=reference, progress=parent.progress)
    _ready(trainer.run, _resume(trainer.run, start, parent), recipe.steps, parent)
    while isinstance(message := parent.hear(), Step):
        if message.iteration != trainer.run.step + 1:
            raise TrainingFailed(
                "out_of_order", f"asked for step {message.iteration}; {trainer.run.step} steps are done"
            )
        try:
            batch = RolloutBatch.from_bytes(Path(message.batch).read_bytes())
        except (OSError, ValueError) as error:
            raise TrainingFailed("bad_batch", f"iteration {message.iteration}: {error}") from error
        result = trainer.step(batch)
        weights = work / f"policy-{result.step:06d}.safetensors"
        policy.write_serving(weights, version=result.step)
        canary = _canary(trainer, recipe)
        checkpoint = _checkpoint(trainer.run, work, recipe.steps, parent)
        parent.say(
            Stepped(step=result.step, values=result.values, weights=str(weights), canary=canary, checkpoint=checkpoint)
        )
    if isinstance(message, Pause):
        _pause(trainer.run, work, parent)
        return
    _finish(trainer.run, work, parent, best_step=trainer.run.step)


def _canary(trainer: RlTrainer, recipe: RlRecipe) -> Canary | None:
    """The canary of the version that was just made, when it is its turn."""
    run = trainer.run
    if not recipe.verify_every_k or run.step % recipe.verify_every_k or run.canary is None:
        return None
    return score_canary(trainer.policy, run.canary)


def train_sft(start: Start, recipe: SftRecipe, parent: Parent) -> None:
    """SFT: tokenise, load, say ready, then step after step to the end, and the model."""
    if start.dataset is None:
        raise TrainingFailed("bad_message", "`start` of an SFT run has no dataset")
    work = Path(start.work_dir)
    cache = Path(start.cache_dir) if start.cache_dir else None
    tokenizer = load_tokenizer(Path(start.model_dir))
    ranks = parent.join(recipe)
    with ranks.leader_first():
        data, validation = (
            None
            if path is None
            else encode_file(
                Path(path),
                tokenizer,
                sequence_length=recipe.sequence_length,
                examples=recipe.examples if name == "dataset" else None,
                cache=None if cache is None else cache / f"{name}.safetensors",
                progress=lambda rows: parent.progress("tokenise", rows, 0),
            )
            for name, path in (("dataset", start.dataset), ("validation", start.validation))
        )
    assert data is not None
    policy = _load(start, recipe, parent, dropout=True)
    policy.spread(ranks)
    best_file = work / "best.safetensors"
    trainer = SftTrainer(policy, recipe, data, validation=validation, best_file=best_file, progress=parent.progress)
    resumed = _resume(trainer.run, start, parent)
    if resumed is not None and resumed.best_file is not None and ranks.leads:
        best_file.write_bytes(resumed.best_file.read_bytes())
    _ready(trainer.run, resumed, trainer.total, parent)
    while trainer.run.step < trainer.total:
        if ranks.agree(parent.has_spoken()):
            # While it trains the parent has but one thing to say.
            _pause(trainer.run, work, parent, best_file=best_file)
            return
        result = trainer.step()
        checkpoint = _checkpoint(trainer.run, work, trainer.total, parent, best_file=best_file)
        parent.say(Stepped(step=result.step, values=result.values, checkpoint=checkpoint))
    trainer.use_best()
    best = trainer.run.best
    _finish(trainer.run, work, parent, best_step=trainer.run.step if best is None else best[1])


def _load(start: Start, recipe: Recipe, parent: Parent, *, dropout: bool) -> Policy:
    rng.seed_everything(recipe.seed, threads=recipe.threads, deterministic=recipe.deterministic)
    parent.progress("load", 0, 1)
    return load_policy(Path(start.model_dir), recipe, adapter_dir=_adapter_dir(start), dropout=dropout)


def _adapter_dir(start: Start) -> Path | None:
    return Path(start.adapter_dir) if start.adapter_dir else None


def _resume(run: Run, start: Start, parent: Parent) -> Resumed | None:
    if start.resume_dir is None:
        return None
    parent.progress("resume", 0, 1)
    return run.resume(Path(start.resume_dir))


def _ready(run: Run, resumed: Resumed | None, total: int, parent: Parent) -> None:
    parent.say(
        Ready(
            step=run.step,
            fingerprint=msgspec.to_builtins(fingerprint(run.policy.recipe)),
            total=total,
            loss_then=None if resumed is None else resumed.loss_then,
            loss_now=None if resumed is None else resumed.loss_now,
            same_fingerprint=True if resumed is None else resumed.same_fingerprint,
            reports={} if resumed is None else resumed.reports,
        )
    )


def _checkpoint(run: Run, work: Path, total: int, parent: Parent, *, best_file: Path | None = None) -> str | None:
    if run.step % run.policy.recipe.checkpoint_every and run.step != total:
        return None
    return _save(run, work, parent, best_file=best_file)


def _pause(run: Run, work: Path, parent: Parent, *, best_file: Path | None = None) -> None:
    # What was reported since the last checkpoint is what it does not cover.
    folder = _save(run, work, parent, best_file=best_file) if run.reports else None
    parent.say(Paused(step=run.step, checkpoint=folder))


def _save(run: Run, work: Path, parent: Parent, *, best_file: Path | None) -> str:
    parent.progress("checkpoint", 0, 1)
    folder = work / f"checkpoint-{run.step:06d}"
    run.save(folder, best_file=best_file if run.best is not None else None)
    return str(folder)


def _finish(run: Run, work: Path, parent: Parent, *, best_step: int) -> None:
    parent.progress("export", 0, 1)
    folder = work / "model"
    run.policy.write_model(folder)
    parent.say(Done(model=str(folder), kind=run.policy.kind, step=run.step, best_step=best_step))


if __name__ == "__main__":
    main()
