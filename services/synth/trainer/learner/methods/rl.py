"""The training process of RL: it trains on each batch that the owner sends."""

from __future__ import annotations

import time
from pathlib import Path

from synth.events import Canary
from synth.methods.rl import RlJob
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.canary import score_canary
from synth.trainer.learner.checkpoint_saver import CheckpointSaver
from synth.trainer.learner.model.reference import load_reference
from synth.trainer.learner.process.owner_channel import OwnerChannel
from synth.trainer.learner.process.turns import Turns
from synth.trainer.learner.rl import RlTrainer, find_loss
from synth.trainer.learner.session import Session
from synth.trainer.protocol import Finish, Pause, Start, Stepped, TrainBatch
from synth.trajectories import RolloutBatch


def train(session: Session, job: RlJob) -> None:
    """Load, send `ready`, then train on each batch that the owner sends, until `finish` or `pause`."""
    find_loss(job.loss)  # before anything large is loaded: a plugin may be at fault
    channel = session.channel
    process_group = session.join()
    turns = session.take_turn()
    policy = session.load(job)
    reference = load_reference(policy, job, adapter_dir=session.adapter_dir, process_group=process_group)
    policy.shard(process_group)
    trainer = RlTrainer(policy, job, reference=reference, progress=channel.send_progress)
    turns.attach(policy, trainer.state.optimizer, *([reference] if reference is not None else []))
    session.ready(trainer.state, session.resume(trainer.state), job.iterations)
    checkpoints = CheckpointSaver(trainer.state, session.work, total=job.iterations, channel=channel)
    with checkpoints.finished_on_failure():
        while isinstance(message := _next_message(channel, turns), TrainBatch):
            if message.iteration != trainer.state.step + 1:
                raise TrainingFailed(
                    "out_of_order", f"the batch is for step {message.iteration}; {trainer.state.step} steps are done"
                )
            try:
                batch = RolloutBatch.from_bytes(Path(message.batch).read_bytes())
            except (OSError, ValueError) as error:
                raise TrainingFailed("bad_batch", f"iteration {message.iteration}: {error}") from error
            result = trainer.step(batch)
            trained_at = time.time()
            result.values.update(turns.metrics() | checkpoints.metrics())
            weights = session.work / f"policy-{result.step:06d}.safetensors"
            written = policy.write_serving_weights(weights, version=result.step)
            canary = _canary(trainer)
            if written is not None:
                channel.send(
                    Stepped(
                        step=result.step,
                        values=result.values,
                        trained_at=trained_at,
                        weights=str(weights),
                        weights_sha256=written.file.sha256,
                        canary=canary,
                    )
                )
            # The next batch is sampled with these weights, so they are sent before the checkpoint is saved.
            checkpoints.save_if_due()
    if isinstance(message, Pause):
        session.pause(checkpoints)
        return
    session.finish(checkpoints, best_step=trainer.state.step)


def _next_message(channel: OwnerChannel, turns: Turns) -> TrainBatch | Pause | Finish | Start:
    """Return the next message. While there is none, inference may use a shared device to sample the next batch."""
    if channel.has_message():
        turns.give_up_if_awaited()
    else:
        turns.give_up()
    message = channel.recv()
    turns.take()
    return message


def _canary(trainer: RlTrainer) -> Canary | None:
    """Score the canary with the version that was just made, when that version is to be verified; else None."""
    state, every = trainer.state, trainer.job.verify_every_k
    if not every or state.step % every or state.canary is None:
        return None
    return score_canary(trainer.policy, state.canary)
