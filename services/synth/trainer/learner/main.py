"""The training process, `python -m synth.trainer.learner`: reads JSON messages on stdin, writes them on stdout.

The service starts this process, sends it batches and watches it; the process knows neither bus nor HTTP. The messages
are in `protocol.py`.

If a config has several ranks, this process is rank 0 and starts the others, which run the same code on the same
messages: `ProcessGroup` holds all differences between ranks.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from synth.estimates.verdict import Verdict
from synth.events import Canary
from synth.images.processor import is_vision_folder
from synth.trainer.config import RlTrainConfig, SftTrainConfig, TrainConfig, parse_train_config
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner import rng
from synth.trainer.learner.canary import score_canary
from synth.trainer.learner.checkpoint.fingerprint import fingerprint
from synth.trainer.learner.checkpoint_saver import CheckpointSaver
from synth.trainer.learner.data.dataset_file import DatasetFile
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.pair_dataset import PairDataset, encode_pair_file
from synth.trainer.learner.data.sft_dataset import SftDataset, encode_file, load_tokenizer
from synth.trainer.learner.data.sft_images import SftImages
from synth.trainer.learner.data.token_cache import TokenCache
from synth.trainer.learner.data.token_store import StoredSequences
from synth.trainer.learner.memory import check_device_memory
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.model.reference import load_reference
from synth.trainer.learner.process.owner_channel import OwnerChannel
from synth.trainer.learner.process.turns import Turns
from synth.trainer.learner.rl import RlTrainer, find_loss
from synth.trainer.learner.sft import SftTrainer
from synth.trainer.learner.training_state import Resumed, TrainingState
from synth.trainer.protocol import (
    IMAGES_FOLDER,
    TOKENISE,
    DataFile,
    Done,
    Failed,
    Finish,
    Pause,
    Paused,
    Ready,
    Start,
    Stepped,
    TrainBatch,
)
from synth.trajectories import RolloutBatch


def main() -> NoReturn:
    """Serve the protocol on stdin and stdout until training is done; stray prints go to stderr."""
    lines_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    channel = OwnerChannel(sys.stdin.buffer, lines_out)
    _log_to_stderr()
    try:
        start = channel.recv()
        if not isinstance(start, Start):
            raise TrainingFailed("bad_message", "expected `start` first")
        if start.kind == "rl":
            train_rl(start, parse_train_config(start.config, RlTrainConfig), channel)
        else:
            train_sft(start, parse_train_config(start.config, SftTrainConfig), channel)
    except TrainingFailed as error:
        channel.fail(Failed(code=error.code, detail=error.detail))
    except (torch.OutOfMemoryError, MemoryError) as error:
        channel.fail(
            Failed(code="out_of_memory", detail=f"{error}; lower micro_batch_tokens or checkpoint activations"),
        )
    except Exception as error:  # noqa: BLE001  (the edge of the process: reported, and it sets the exit code)
        traceback.print_exc()
        channel.fail(Failed(code="internal", detail=f"{type(error).__name__}: {error}"))
    lines_out.flush()
    # No interpreter teardown: the reader thread is still in a read of stdin.
    os._exit(0)


def _log_to_stderr() -> None:
    """Log to stderr, for the service's log: what our algorithms choose and why, and the warnings of libraries."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    logging.getLogger("synth").setLevel(logging.INFO)


def warm_up() -> None:
    """Import what every job needs, while there is no job yet."""
    import transformers.models.auto.modeling_auto
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401


def train_rl(start: Start, config: RlTrainConfig, channel: OwnerChannel) -> None:
    """Run RL: load, send `ready`, then train on each batch that the owner sends, until `finish` or `pause`."""
    find_loss(config.loss)  # before anything large is loaded: a plugin may be at fault
    work = Path(start.work_dir)
    process_group = channel.init_process_group(config)
    turns = _turns(start, config, channel)
    turns.take()
    policy = _load(start, config, channel, dropout=False)
    reference = load_reference(policy, config, adapter_dir=_adapter_dir(start), process_group=process_group)
    policy.shard(process_group)
    trainer = RlTrainer(policy, config, reference=reference, progress=channel.send_progress)
    turns.attach(policy, trainer.state.optimizer, *([reference] if reference is not None else []))
    _ready(trainer.state, _resume(trainer.state, start, channel), config.steps, channel)
    checkpoints = CheckpointSaver(trainer.state, work, total=config.steps, channel=channel)
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
            weights = work / f"policy-{result.step:06d}.safetensors"
            written = policy.write_serving_weights(weights, version=result.step)
            canary = _canary(trainer, config)
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
        _pause(checkpoints, channel)
        return
    _finish(checkpoints, work, channel, best_step=trainer.state.step)


def _next_message(channel: OwnerChannel, turns: Turns) -> TrainBatch | Pause | Finish | Start:
    """Return the next message. While there is none, inference may use a shared device to sample the next batch."""
    if channel.has_message():
        turns.give_up_if_awaited()
    else:
        turns.give_up()
    message = channel.recv()
    turns.take()
    return message


def _turns(start: Start, config: TrainConfig, channel: OwnerChannel) -> Turns:
    if start.turn is not None and config.world_size > 1:
        raise TrainingFailed(
            "bad_recipe",
            f"{config.world_size} ranks, and a device that is shared by turns; expected one rank: unset SYNTH_RANKS or "
            "SYNTH_TURN_FILE",
        )
    device = torch.device(config.device)
    return Turns(start.turn, device, progress=lambda: channel.send_progress("wait for the turn", 0, 1))


def _canary(trainer: RlTrainer, config: RlTrainConfig) -> Canary | None:
    """Score the canary with the version that was just made, when that version is to be verified; else None."""
    state = trainer.state
    if not config.verify_every_k or state.step % config.verify_every_k or state.canary is None:
        return None
    return score_canary(trainer.policy, state.canary)


def train_sft(start: Start, config: SftTrainConfig, channel: OwnerChannel) -> None:
    """Run SFT or DPO: tokenise, load, send `ready`, then train step after step to the end, and write the model."""
    if start.dataset is None:
        raise TrainingFailed("bad_message", "`start` of an SFT run has no dataset")
    work = Path(start.work_dir)
    process_group = channel.init_process_group(config)
    # The other ranks run after rank 0, and read the chunks that it has made.
    with process_group.main_process_first():
        data, validation = (
            file and _encode(start, config, file, channel, examples=examples, makes=process_group.is_main)
            for file, examples in ((start.dataset, config.examples), (start.validation, None))
        )
    assert data is not None
    turns = _turns(start, config, channel)
    turns.take()
    # With dropout a policy that is its own reference would differ from it.
    policy = _load(start, config, channel, dropout=config.dpo is None)
    policy.shard(process_group)
    best_file = work / "best.safetensors"
    trainer = SftTrainer(
        policy, config, data, validation=validation, best_file=best_file, progress=channel.send_progress
    )
    resumed = _resume(trainer.state, start, channel)
    if resumed is not None and resumed.best_file is not None and process_group.is_main:
        best_file.write_bytes(resumed.best_file.read_bytes())
    turns.attach(policy, trainer.state.optimizer)
    _ready(trainer.state, resumed, trainer.total, channel)
    checkpoints = CheckpointSaver(trainer.state, work, total=trainer.total, channel=channel, best_file=best_file)
    with checkpoints.finished_on_failure():
        while trainer.state.step < trainer.total:
            if process_group.broadcast(channel.has_message()):
                # During training the owner sends nothing but `pause`.
                _pause(checkpoints, channel)
                return
            result = trainer.step()
            result.values.update(turns.metrics() | checkpoints.metrics())
            channel.send(Stepped(step=result.step, values=result.values, trained_at=time.time()))
            checkpoints.save_if_due()
            turns.give_up_if_awaited()
    trainer.use_best()
    best = trainer.state.best
    best_step = trainer.state.step if best is None else best[1]
    _finish(checkpoints, work, channel, best_step=best_step, verdict=trainer.verdict())


def _encode(
    start: Start, config: SftTrainConfig, file: DataFile, channel: OwnerChannel, *, examples: int | None, makes: bool
) -> SftDataset[StoredSequences] | PairDataset[StoredSequences]:
    """Return the tokens of a file. makes: whether this process makes the tokens that are not in the cache."""
    cache_config, loader = start.tokens, _image_loader(start)
    if cache_config is None:
        cache = TokenCache(Path(start.work_dir) / "tokens", max_bytes=sys.maxsize, processes=1)
    else:
        cache = TokenCache(
            Path(cache_config.folder),
            max_bytes=cache_config.max_bytes,
            processes=cache_config.processes,
            chunk_bytes=cache_config.chunk_bytes,
            waiting=lambda: channel.send_progress("wait for tokens", 0, 1),
        )
    return (encode_file if config.dpo is None else encode_pair_file)(
        DatasetFile(Path(file.path), file.sha256, examples),
        load_tokenizer(Path(start.model_dir)),
        sequence_length=config.sequence_length,
        cache=cache,
        images=None if loader is None else SftImages(loader, config.max_images_per_message),
        day=start.day,
        makes=makes,
        progress=lambda done, of: channel.send_progress(TOKENISE, done, of),
    )


def _load(start: Start, config: TrainConfig, channel: OwnerChannel, *, dropout: bool) -> Policy:
    check_device_memory(start, config)
    rng.seed_everything(config.seed, threads=config.threads, deterministic=config.deterministic)
    channel.send_progress("load", 0, 1)
    model_dir, images = Path(start.model_dir), _image_loader(start)
    return load_policy(model_dir, config, adapter_dir=_adapter_dir(start), images=images, dropout=dropout)


def _image_loader(start: Start) -> ImageLoader | None:
    """Return the loader of the images in prompts; None for a model without vision."""
    model_dir = Path(start.model_dir)
    return ImageLoader.load(model_dir, Path(start.work_dir) / IMAGES_FOLDER) if is_vision_folder(model_dir) else None


def _adapter_dir(start: Start) -> Path | None:
    return Path(start.adapter_dir) if start.adapter_dir else None


def _resume(state: TrainingState, start: Start, channel: OwnerChannel) -> Resumed | None:
    if start.resume_dir is None:
        return None
    channel.send_progress("resume", 0, 1)
    return state.resume(Path(start.resume_dir))


def _ready(state: TrainingState, resumed: Resumed | None, total: int, channel: OwnerChannel) -> None:
    channel.send(
        Ready(
            step=state.step,
            fingerprint=msgspec.to_builtins(fingerprint(state.policy.config)),
            total=total,
            loss_then=None if resumed is None else resumed.loss_then,
            loss_now=None if resumed is None else resumed.loss_now,
            same_fingerprint=True if resumed is None else resumed.same_fingerprint,
            reports={} if resumed is None else resumed.reports,
        )
    )


def _pause(checkpoints: CheckpointSaver, channel: OwnerChannel) -> None:
    checkpoints.save_uncovered()
    checkpoints.wait()
    channel.send(Paused(step=checkpoints.state.step))


def _finish(
    checkpoints: CheckpointSaver, work: Path, channel: OwnerChannel, *, best_step: int, verdict: Verdict | None = None
) -> None:
    checkpoints.save_uncovered()
    state = checkpoints.state
    channel.send_progress("export", 0, 1)
    folder = work / "model"
    state.policy.write_model(folder)
    checkpoints.wait()
    done = Done(model=str(folder), kind=state.policy.kind, step=state.step, best_step=best_step, verdict=verdict)
    channel.send(done)
