"""Each family of models, on a tiny version of its real architecture: what docs/models.md says of it is proven here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from synth.chat.messages import Conversation, Message
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.protocol import Delta, Engine, SamplingParams
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.trainer.learner.data.packing import Sequences, collate
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.weights.lora_merge import write_merged_model
from synth.weights.policy_file import read_policy
from synth.weights.tensor_file import load_tensors
from tests.service.families.architectures import ARCHITECTURES, Architecture, save_architecture
from tests.unit.inference.engines.completions import complete, prompt
from tests.unit.trainer.batches import random_batch, scored_by
from tests.unit.trainer.jobs import OPEN_GATES, rl_job

TOLERANCE = 1e-4
TABLE = Path(__file__).parents[3] / "docs" / "models.md"
#: What was proven of each family in this run, by the columns of the table.
PROVEN: defaultdict[str, dict[str, str]] = defaultdict(dict)
_COLUMNS = ("trainer = engine", "LoRA", "a turn ends with", "full weights in the hub's names")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda a: a.name)
def family(request: pytest.FixtureRequest) -> Architecture:
    return request.param


@pytest.fixture(scope="module")
def folder(family: Architecture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("family") / "model"
    save_architecture(path, family)
    return path


def trained(folder: Path, adapter_dir: Path | None = None, **changes: Any) -> RlTrainer:
    """A trainer that has done one step."""
    trainer = untrained(folder, adapter_dir, **changes)
    values = trainer.step(scored_by(trainer.policy, random_batch(1))).values
    assert values["optimizer_moves"] > 0
    assert values["ppo_kl"] > 0
    return trainer


def untrained(folder: Path, adapter_dir: Path | None = None, **changes: Any) -> RlTrainer:
    job = rl_job(lr=3e-3, **OPEN_GATES, **changes)
    torch.manual_seed(job.seed)
    return RlTrainer(load_policy(folder, job, adapter_dir=adapter_dir, dropout=False), job)


async def serving(folder: Path, adapter: Path | None = None) -> TransformersEngine:
    return await TransformersEngine.load(folder, adapter=adapter, settings=EngineSettings(device="cpu", seed=0))


async def sampled(engine: Engine) -> list[tuple[list[int], Delta]]:
    """Completions of prompts shorter and longer than a window of 8, all at once."""
    params = SamplingParams(max_tokens=24, banned=tuple(range(8)))
    return [(prompt(i, n), await complete(engine, prompt(i, n), params)) for i, n in enumerate((3, 20, 41))]


def largest_difference(
    completions: list[tuple[list[int], Delta]], logprobs: Callable[[list[int]], torch.Tensor]
) -> float:
    """Between an engine's log-probabilities and those of the same tokens by `logprobs`, [L, V], without the banned."""
    worst = 0.0
    for ids, reply in completions:
        logits_LV = logprobs([*ids, *reply.token_ids])[len(ids) - 1 : -1].clone()
        logits_LV[:, :8] = -torch.inf
        chosen = logits_LV.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None]).squeeze(1)
        worst = max(worst, float((chosen - torch.tensor(reply.logprobs)).abs().max()))
    return worst


def by_policy(policy: Policy) -> Callable[[list[int]], torch.Tensor]:
    """The trainer's own forward: two sequences in one forward, of which the second one counts."""

    def logprobs(ids: list[int]) -> torch.Tensor:
        tokens = np.array([*ids, *ids], np.int32)
        sequences = Sequences(tokens, np.ones(len(tokens), np.float32), np.array([0, len(ids), len(tokens)]))
        micro = collate(sequences, [0, 1], packing=policy.layout)
        head = policy.model.get_output_embeddings()
        with torch.no_grad():
            hidden_LD = policy.hidden_states(micro).flatten(0, 1)[-len(ids) :]
            product_LV = torch.nn.functional.linear(hidden_LD, head.weight, head.bias)
            return policy.logit_rule.logits(product_LV).log_softmax(-1)

    return logprobs


def by_library(folder: Path) -> Callable[[list[int]], torch.Tensor]:
    """transformers' own attention."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")

    def logprobs(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model.eval()(torch.tensor([ids])).logits[0].log_softmax(-1)

    return logprobs


async def test_trainer_engine_and_library_agree_before_a_step_and_after_it(
    family: Architecture, folder: Path, tmp_path: Path
):
    engine = await serving(folder)
    trainer = untrained(folder)
    before = await sampled(engine)
    assert largest_difference(before, by_library(folder)) <= TOLERANCE
    assert largest_difference(before, by_policy(trainer.policy)) <= TOLERANCE
    trainer.step(scored_by(trainer.policy, random_batch(1)))
    file = tmp_path / "v1.safetensors"
    trainer.policy.write_serving_weights(file, version=1)
    digests = read_policy(file).digests
    proof = await engine.update_weights(file, 1)
    assert (proof.matched, proof.tensors) == (len(digests), len(digests))
    after = await sampled(engine)
    await engine.close()
    assert largest_difference(after, by_policy(trainer.policy)) <= TOLERANCE
    assert largest_difference(after, by_library(folder)) > TOLERANCE
    PROVEN[family.name][_COLUMNS[0]] = "yes"


async def test_full_weights_have_the_names_of_the_models_own_files(family: Architecture, folder: Path, tmp_path: Path):
    trainer = trained(folder)
    file = tmp_path / "v1.safetensors"
    trainer.policy.write_serving_weights(file, version=1)
    of_folder, _ = load_tensors(folder / "model.safetensors")
    published = read_policy(file).tensors
    assert {n: t.shape for n, t in published.items()} == {n: t.shape for n, t in of_folder.items()}
    # The finished model, and a checkpoint that is gone on with, hold the same policy.
    trainer.policy.write_model(tmp_path / "model")
    made, _ = load_tensors(tmp_path / "model" / "model.safetensors")
    assert made.keys() == of_folder.keys()
    again = untrained(folder)
    again.policy.load_trainable_state_dict(made)
    ids = prompt(1, 30)
    torch.testing.assert_close(by_policy(again.policy)(ids), by_policy(trainer.policy)(ids), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        by_library(tmp_path / "model")(ids), by_policy(trainer.policy)(ids), rtol=0, atol=TOLERANCE
    )
    PROVEN[family.name][_COLUMNS[3]] = "yes, each expert its own" if any(".experts.0." in n for n in made) else "yes"


async def test_an_adapter_trains_is_served_and_is_merged(family: Architecture, folder: Path, tmp_path: Path):
    trainer = trained(folder, mode="lora")
    file = tmp_path / "v1.safetensors"
    trainer.policy.write_serving_weights(file, version=1)
    names = read_policy(file).tensors.keys()
    assert any("self_attn" in n for n in names)
    # An expert's weights are one tensor with the others', which no linear layer holds.
    reached = any(part in n for n in names for part in ("mlp.gate_proj", "mlp.gate_up_proj", "mlp.up_proj"))
    assert reached != family.experts
    assert not any(".experts" in n or "lm_head" in n for n in names)
    engine = await serving(folder)
    await engine.update_weights(file, 1)
    served = await sampled(engine)
    await engine.close()
    assert largest_difference(served, by_policy(trainer.policy)) <= TOLERANCE
    trainer.policy.write_model(tmp_path / "adapter")
    write_merged_model(folder, tmp_path / "adapter", tmp_path / "merged")
    assert largest_difference(served, by_library(tmp_path / "merged")) <= TOLERANCE
    PROVEN[family.name][_COLUMNS[1]] = "attention, not the experts" if family.experts else "every linear layer"


async def test_a_turn_ends_with_what_the_template_writes_there(family: Architecture, folder: Path):
    chat = ChatFormat.load(folder)
    ends = {chat.tokenizer.full.convert_tokens_to_ids(t) for t in (family.ends, family.special[0], *family.configured)}
    conversation = Conversation([Message(role="user", content="What is 12 + 34?")])
    ids = chat.prompt(conversation).ids
    assert "What is 12 + 34?" in chat.tokenizer.full.decode(ids)
    prepared = chat.template.prepare(Conversation([*conversation.messages, Message(role="assistant", content="46")]))
    before, whole = chat.template.assistant_turn(prepared, 1)
    assert chat.template.encode(before) == ids
    assert whole.removeprefix(before).strip().startswith("46")
    assert ends == untrained(folder).policy.eos_ids
    engine = await serving(folder)
    for end in ends:
        others = tuple(token for token in range(320) if token != end)
        reply = await complete(engine, ids, SamplingParams(max_tokens=5, banned=others))
        assert (reply.token_ids, reply.finish_reason) == ([end], "stop")
        assert chat.tokenizer.decode(reply.token_ids) == ""
    await engine.close()
    # In a table of Markdown a bar ends a cell.
    PROVEN[family.name][_COLUMNS[2]] = "`" + family.ends.replace("|", "\\|") + "`"


def test_the_table_of_the_documentation_is_what_was_proven():
    if {a.name for a in ARCHITECTURES} != set(PROVEN) or any(len(found) < len(_COLUMNS) for found in PROVEN.values()):
        pytest.skip("the table needs every family's tests in one run")
    rows = [
        f"| {a.name} | {a.model} | " + " | ".join(PROVEN[a.name][column] for column in _COLUMNS) + " |"
        for a in ARCHITECTURES
    ]
    head = ["| family | architecture | " + " | ".join(_COLUMNS) + " |", "|---" * (2 + len(_COLUMNS)) + "|"]
    table = "\n".join([*head, *rows])
    assert table in TABLE.read_text(), f"write this table into {TABLE.name}:\n{table}"
