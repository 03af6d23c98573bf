"""DPO: it learns what is preferred, begins at its reference, and goes on from a checkpoint with the same reference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from synth.methods.base import LoraSettings
from synth.methods.dpo import DpoJob
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.dataset_file import DatasetFile
from synth.trainer.learner.data.packing import collate
from synth.trainer.learner.data.pair_dataset import PairDataset, encode_pair_file, encode_pairs
from synth.trainer.learner.data.sft_dataset import load_tokenizer
from synth.trainer.learner.data.sft_images import SftImages
from synth.trainer.learner.data.token_store import StoredSequences
from synth.trainer.learner.methods.dpo import DpoTrainer
from synth.trainer.learner.model.policy import load_policy
from tests.unit.trainer.jobs import dpo_job
from tests.unit.trainer.pair_rows import pair_rows, preference_pairs
from tests.unit.trainer.sft_rows import addition_rows, token_cache, write_rows
from tests.unit.trainer.vision import square_rows


@pytest.fixture(scope="module")
def data(model_dir: Path) -> PairDataset:
    return encode_pairs(pair_rows(preference_pairs(64)), load_tokenizer(model_dir), sequence_length=128)


@pytest.fixture(scope="module")
def held_out(model_dir: Path) -> PairDataset:
    return encode_pairs(pair_rows(preference_pairs(32, first=64)), load_tokenizer(model_dir), sequence_length=128)


def trainer(model_dir: Path, job: DpoJob, data: PairDataset, **more: Any) -> DpoTrainer:
    return DpoTrainer(load_policy(model_dir, job, dropout=False), job, data, **more)


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_it_prefers_on_held_out_pairs_what_was_chosen(
    model_dir: Path, data: PairDataset, held_out: PairDataset, mode: Any, tmp_path: Path
) -> None:
    rate = {"full": 1e-3, "lora": 5e-3}[mode]
    job = dpo_job(steps=12, lr=rate, mode=mode, lora=LoraSettings(r=4), validation_every=4)
    job = msgspec.structs.replace(job, best_metric="validation_loss")
    run = trainer(model_dir, job, data, validation=held_out, best_file=tmp_path / "best")
    steps = [run.step().values for _ in range(run.total)]
    first, last = steps[0], steps[-1]
    # The policy is its reference: each side earns nothing, and the loss is that of a coin.
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert first["rewards_chosen"] == pytest.approx(0, abs=1e-3)
    assert last["rewards_margin"] == pytest.approx(last["rewards_chosen"] - last["rewards_rejected"], abs=1e-6)
    assert last["validation_preference_accuracy"] > 0.9
    assert last["validation_loss"] < 0.6
    assert last["validation_rewards_margin"] > 0
    best = run.state.best
    assert best is not None
    assert best[0] == min(values["validation_loss"] for values in steps if "validation_loss" in values)
    assert last["best_step"] == best[1]


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_the_step_is_the_same_however_it_is_cut(model_dir: Path, data: PairDataset, packing: Any) -> None:
    values: list[dict[str, float]] = []
    for tokens in (1, 200, 100_000):
        run = trainer(model_dir, dpo_job(micro_batch_tokens=tokens, packing=packing, batch_size=16), data)
        values.append([run.step().values for _ in range(3)][-1])
    for other in values[1:]:
        for name in ("loss", "rewards_margin", "grad_norm", "logprob_chosen", "preference_accuracy"):
            assert other[name] == pytest.approx(values[0][name], rel=1e-4, abs=1e-5), name


def test_what_the_reference_says_is_the_sum_over_the_completions_tokens(model_dir: Path, data: PairDataset) -> None:
    run = trainer(model_dir, dpo_job(), data)
    run.step()
    reference = run.state.reference["data"]
    policy = load_policy(model_dir, dpo_job(), dropout=False)
    for pair in (0, 9):
        for side in (0, 1):
            index = data.sequences_of([pair])[side]
            micro = collate(data.sequences, [index], packing="padded")
            with torch.no_grad():
                logp_N, _ = policy.logprobs(micro)
            assert reference[pair, side].item() == pytest.approx(logp_N.double().sum().item(), abs=1e-4)
            # "answer 21" or "it is 21" and the end of the turn, and nothing of the prompt.
            trained = load_tokenizer(model_dir).decode(micro.target_N.tolist())
            assert trained.startswith("it is" if side else "answer")
            assert "What" not in trained


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_a_run_that_resumes_keeps_its_reference_and_ends_as_one_straight_through(
    model_dir: Path, data: PairDataset, held_out: PairDataset, mode: Any, tmp_path: Path
) -> None:
    job = dpo_job(steps=6, mode=mode, lora=LoraSettings(r=4), validation_every=3)
    straight = trainer(model_dir, job, data, validation=held_out)
    values = {}
    for step in range(1, 7):
        values[step] = straight.step().values
        if step == 3:
            write_checkpoint(tmp_path / "checkpoint", straight.state.snapshot())
    again = trainer(model_dir, job, data, validation=held_out)
    resumed = again.state.resume(tmp_path / "checkpoint")
    assert resumed.loss_then == resumed.loss_now is not None
    for name in ("data", "validation", "source_rows"):
        assert torch.equal(again.state.reference[name], straight.state.reference[name])
    for step in range(4, 7):
        found = again.step().values
        for name, value in values[step].items():
            if not name.startswith(("seconds", "tokens_per_second", "peak_memory")):
                assert found[name] == value, name


def test_what_the_assistant_says_in_the_prompt_is_context(model_dir: Path) -> None:
    [row] = preference_pairs(1)
    earlier = [{"role": "user", "content": "a word?"}, {"role": "assistant", "content": "hello"}]
    longer = {**row, "messages": [*earlier, *row["messages"]]}
    tokenizer = load_tokenizer(model_dir)
    found = [encode_pairs(pair_rows([r]), tokenizer, sequence_length=256).sequences for r in (row, longer)]
    trained = [[s.tokens[s.trained_positions(i)].tolist() for i in (0, 1)] for s in found]
    assert trained[0] == trained[1]
    assert len(found[1].tokens) > len(found[0].tokens)


def test_pairs_are_cut_and_counted_and_both_sides_stay_or_go(model_dir: Path) -> None:
    rows = preference_pairs(4)
    rows[1]["messages"][0]["content"] *= 40
    # What differs comes after the cut.
    rows[2]["chosen"][0]["content"] = "word " * 200 + "yes"
    rows[2]["rejected"][0]["content"] = "word " * 200 + "no"
    found = encode_pairs(pair_rows(rows), load_tokenizer(model_dir), sequence_length=64)
    assert len(found) == 2
    assert found.counts["rows"] == 4
    assert found.counts["sequences"] == 4
    assert found.counts["untrained_rows"] == 2
    assert found.counts["truncated_rows"] == 4


def test_a_pair_whose_sides_are_rendered_the_same_is_refused_by_row(model_dir: Path) -> None:
    rows = preference_pairs(3)
    # A template without names renders both alike, and ingest cannot know that.
    for side, name in (("chosen", "a"), ("rejected", "b")):
        rows[1][side] = [{"role": "assistant", "content": "the same", "name": name}]
    with pytest.raises(TrainingFailed, match=r"row 2: .* renders the chosen and the rejected side the same"):
        encode_pairs(pair_rows(rows), load_tokenizer(model_dir), sequence_length=128)


def test_a_tokenised_file_is_read_again(model_dir: Path, tmp_path: Path) -> None:
    rows = preference_pairs(6)
    path = write_rows(tmp_path / "pairs.jsonl", rows)
    tokenizer = load_tokenizer(model_dir)

    def read() -> PairDataset[StoredSequences]:
        cache = token_cache(tmp_path / "cache", chunk_bytes=600)
        return encode_pair_file(DatasetFile(path, examples=5), tokenizer, sequence_length=128, cache=cache)

    def chunks() -> list[tuple[str, int]]:
        return sorted((file.name, file.stat().st_ino) for file in (tmp_path / "cache").glob("*/*.tokens"))

    found, first = read(), chunks()
    assert len(first) > 1
    again = read()
    assert chunks() == first
    whole = encode_pairs(pair_rows(rows[:5]), tokenizer, sequence_length=128)
    for data in (found, again):
        assert len(data) == 5
        assert data.cu_sides.tolist() == list(range(11))
        assert data.counts == whole.counts
        for name in ("tokens", "weights", "cu_seqlens"):
            assert (getattr(data.sequences.select(range(10)), name) == getattr(whole.sequences, name)).all()


def test_a_file_of_conversations_is_named(model_dir: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", addition_rows(1))
    with pytest.raises(TrainingFailed, match=r"rows.jsonl:1: .* expected messages\[\], chosen\[\] and rejected\[\]"):
        encode_pair_file(
            DatasetFile(path), load_tokenizer(model_dir), sequence_length=128, cache=token_cache(tmp_path / "cache")
        )


def test_pairs_show_their_images(vision_dir: Path, loader: Any) -> None:
    rows: list[dict[str, Any]] = [
        {
            "messages": row["messages"][:1],
            "chosen": row["messages"][1:],
            "rejected": [{"role": "assistant", "content": "nothing"}],
        }
        for row in square_rows(loader.folder, 4)
    ]
    found = encode_pairs(pair_rows(rows), load_tokenizer(vision_dir), sequence_length=256, images=SftImages(loader, 1))
    assert [len(images) for images in found.sequences.images] == [1] * 8
    job = dpo_job(batch_size=4, steps=2)
    run = DpoTrainer(load_policy(vision_dir, job, images=loader, dropout=False), job, found)
    assert run.step().values["loss"] == pytest.approx(math.log(2), abs=1e-3)
    assert run.step().values["loss"] < math.log(2)
