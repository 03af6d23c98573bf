"""The model in training: loaded from a local folder, trained in full or through a LoRA adapter, and written.

Master weights are float32. With dtype "bf16" the forward runs under autocast and the served weights are cast, because
AdamW at a learning rate of 1e-6 would lose most of its updates to the rounding of bfloat16 weights.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from synth.chat.turn_end import turn_ends
from synth.images.qwen3_vl import ImagePatches, hidden_states, is_qwen3_vl
from synth.methods.base import CPU_FORWARDS, TrainingJob
from synth.models.architectures import LogitRule
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.packing import MicroBatch, plan_micro_batches
from synth.trainer.learner.data.sft_dataset import load_tokenizer
from synth.trainer.learner.distributed.dtensor import distribute_like, gather_full
from synth.trainer.learner.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from synth.trainer.learner.model.activation_checkpointing import ops_saved_by_checkpointing
from synth.trainer.learner.model.base_model import load_base_model
from synth.trainer.learner.model.dropout import disable_dropout, draws_numbers, use_keyed_dropout
from synth.trainer.learner.model.layout import Layout, choose_layout
from synth.trainer.learner.model.logprobs import token_logprobs
from synth.trainer.learner.model.lora import add_adapter, merge_adapter
from synth.trainer.learner.model.micro_batch_threads import MicroBatchThreads
from synth.trainer.learner.model.qlora import replace_with_nf4
from synth.trainer.learner.model.varlen_attention import varlen_kwargs
from synth.trainer.machine import ONE_CPU, Machine
from synth.weights.durable import write_atomically
from synth.weights.policy_file import Kind, WrittenPolicy, write_policy
from synth.weights.published_names import Part, published_parts, published_tensors, tensor_in_memory
from synth.weights.tensor_file import save_tensors

if TYPE_CHECKING:
    from synth.trainer.learner.distributed.fsdp import ShardedModel

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".index.json")
_TOKENIZER_FILES = ("tokenizer", "special_tokens", "added_tokens", "vocab", "merges", "chat_template")


@dataclass
class Policy:
    """A causal language model and its trained parameters.

    model: the Hugging Face model, with LoRA layers in place unless the mode is "full" (`peft_model` wraps it then).
    process_group: the ranks that train it, set by `shard`; then every rank calls each method that computes, gathers or
    writes. layout: of the rows of its forwards. images: the loader of the images in its prompts; None for a model
    without vision.
    """

    model: Any
    peft_model: Any | None
    model_dir: Path
    job: TrainingJob
    machine: Machine
    layout: Layout
    process_group: ProcessGroup = SINGLE_PROCESS
    images: ImageLoader | None = None
    _sharded_model: ShardedModel | None = field(default=None, repr=False)

    @property
    def kind(self) -> Kind:
        return "full" if self.peft_model is None else "lora"

    @property
    def device(self) -> torch.device:
        return torch.device(self.machine.device)

    @functools.cached_property
    def eos_ids(self) -> set[int]:
        """Return the tokens that end a turn: of the generation config, else the model config, and of the template."""
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        configured = configured or self.model.config.get_text_config().eos_token_id
        listed: set[int] = set(configured) if isinstance(configured, list) else {configured} - {None}
        return listed | turn_ends(load_tokenizer(self.model_dir))

    def shard(self, process_group: ProcessGroup) -> None:
        """Train with the other ranks, which hold the same weights. It is called before any other method."""
        self.process_group = process_group
        if self.machine.shards(self.job):
            from synth.trainer.learner.distributed.fsdp import ShardedModel

            self._sharded_model = ShardedModel(self.model, self._compute_logprobs, self.job, self.machine)

    def move(self, device: torch.device) -> None:
        """Move every tensor; a policy computes on its own device only."""
        self.model.to(device)

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name, in the model's own order."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def micro_batches(self, lengths: dict[int, int]) -> list[tuple[list[int], bool]]:
        """Divide sequences, or pairs, into the micro-batches of this rank, each with whether it is a dummy.

        lengths: the tokens of each, by its index.
        """
        job, group, device = self.job, self.process_group, self.machine.device
        return group.shard_micro_batches(
            plan_micro_batches(
                lengths,
                budget=job.forward_budget(device),
                packing=self.layout,
                num_ranks=group.size,
                forwards=1 if device == "cuda" else CPU_FORWARDS,
            )
        )

    @functools.cached_property
    def threads(self) -> MicroBatchThreads:
        """The threads that compute the micro-batches: one on a GPU, and one of each rank."""
        one = self.machine.device == "cuda" or self.process_group.size > 1
        return MicroBatchThreads(
            list(self.trainable_parameters().values()),
            1 if one else self.machine.threads,
            draws=draws_numbers(self.model),
        )

    def gathered(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each full tensor of a model folder, by its name in memory: the adapter's, or all of a full model's.

        Every rank goes through all of them.
        """
        for name, tensor in self._state_dict().items():
            yield name, gather_full(tensor.detach())

    def model_sizes(self) -> dict[str, int]:
        """Return the bytes of each tensor that `gathered` gives, in float32."""
        return {name: 4 * tensor.numel() for name, tensor in self._state_dict().items()}

    def published(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return some of the tensors that `gathered` gives, under the names that other engines load."""
        return dict(tensors) if self.kind == "lora" else published_tensors(self._parts, tensors)

    def published_names(self, name: str) -> list[str]:
        """Return the names in a model file of a tensor that `gathered` gives."""
        return [name] if self.kind == "lora" else [published for published, _ in self._parts[name]]

    def trainable_names(self) -> set[str]:
        """Return the names in a `trainable_state_dict`."""
        return {self._saved_name(name) for name in self.trainable_parameters()}

    def model_names(self) -> set[str]:
        """Return the names in a `write_model`: the trained parameters, and in mode "full" the frozen ones."""
        tensors = self._state_dict()
        return {name for live in tensors for name, _ in self._parts[live]} if self.kind == "full" else set(tensors)

    @functools.cached_property
    def _parts(self) -> dict[str, list[tuple[str, Part]]]:
        """The place in the model of each tensor of a model file; the model has a layer's experts as one tensor."""
        return published_parts(self.model, {name: tensor.shape for name, tensor in self._state_dict().items()})

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """Return the trained parameters in float32, on the CPU, by their names in a model file.

        `load_trainable_state_dict` restores them. It is empty on every rank but 0.
        """
        return self._gather_to_cpu(
            {self._saved_name(n): p for n, p in self.trainable_parameters().items()}, torch.float32
        )

    @torch.no_grad()
    def load_trainable_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the trained parameters with the tensors of a `trainable_state_dict`.

        Raises `KeyError` when one is missing.
        """
        for name, parameter in self.trainable_parameters().items():
            saved = self._saved_name(name)
            whole = (
                tensors[saved] if saved in tensors else tensor_in_memory(self._parts[name], parameter.shape, tensors)
            )
            parameter.copy_(distribute_like(whole, parameter))

    def logprobs(self, micro: MicroBatch, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return logp_N (float32, nats, of the micro-batch's trained tokens) and entropy_N (without gradient)."""
        compute = self._compute_logprobs if self._sharded_model is None else self._sharded_model.logprobs
        return compute(micro, temperature=temperature)

    def _compute_logprobs(self, micro: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        hidden_BLD = self.hidden_states(micro)
        head = self.model.get_output_embeddings()
        hidden_ND, head_VD = hidden_BLD.flatten(0, 1)[micro.predict_N], head.weight
        if self.job.low_precision_head:
            # A ratio of two policies needs the precision that float32 masters leave in the hidden state; SFT does not.
            dtype = _compute_dtype(self.machine)
            hidden_ND, head_VD = hidden_ND.to(dtype), head_VD.to(dtype)
        return token_logprobs(
            hidden_ND,
            head_VD,
            micro.target_N,
            bias_V=head.bias,
            rule=self.logit_rule,
            temperature=temperature,
            allowed=micro.allowed,
            banned=micro.banned,
        )

    @property
    def logit_rule(self) -> LogitRule:
        """What the model makes of the product of hidden states and head."""
        return LogitRule.of(self.model.config.get_text_config())

    def hidden_states(self, micro: MicroBatch) -> Tensor:
        """Return the last hidden states [B, L, D]."""
        # There is no attention mask: rows are padded on the right, which causal attention never reads, and packed
        # sequences are separated by their ends, or by position ids that restart.
        with self.autocast():
            return self._seen(micro) if is_qwen3_vl(self.model) else self._read(micro)

    def _read(self, micro: MicroBatch) -> Tensor:
        out = self.model.base_model(
            input_ids=micro.input_ids_BL,
            position_ids=micro.position_ids_BL,
            use_cache=False,
            **varlen_kwargs(micro.position_ids_BL),
        )
        return out.last_hidden_state

    def _seen(self, micro: MicroBatch) -> Tensor:
        ids_BL = micro.input_ids_BL
        patches = self.images.patches(micro.images, ids_BL.device) if self.images is not None else None
        unseen = patches is None and self._sharded_model is not None
        if unseen:
            # Another rank may have an image, and the shards of the vision tower are gathered from every rank.
            patches = ImagePatches.blank(self.model, ids_BL.device)
        positions_3BL = micro.mrope_3BL
        if positions_3BL is None:
            # Text has one position on all axes.
            text_BL = micro.position_ids_BL
            text_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device)[None] if text_BL is None else text_BL
            positions_3BL = text_BL.expand(3, *ids_BL.shape)
        return hidden_states(
            self.model,
            ids_BL,
            positions_3BL,
            patches,
            unseen=unseen,
            use_cache=False,
            **varlen_kwargs(micro.position_ids_BL),
        )

    def write_serving_weights(self, path: Path, *, version: int) -> WrittenPolicy | None:
        """Write the weights to serve, in the served dtype, on rank 0; None on the others."""
        tensors = self._published(self._served_dtype())
        if not self.process_group.is_main:
            return None
        return write_policy(path, tensors, kind=self.kind, version=version, lora=self._lora_config())

    @property
    def weights_file(self) -> str:
        """The name of the weights file in a model folder."""
        return "model.safetensors" if self.kind == "full" else "adapter_model.safetensors"

    def write_model(self, folder: Path) -> None:
        """Write the model to serve: a Hugging Face folder, or an adapter's, with its tokenizer and template."""
        tensors = self._published(self._served_dtype())
        if not self.process_group.is_main:
            return
        folder.mkdir(parents=True)
        save_tensors(folder / self.weights_file, tensors, header={"format": "pt"})
        for source in self.copied_files():
            shutil.copyfile(source, folder / source.name)
        name, config = self.config_file()
        write_atomically(folder / name, config)

    def copied_files(self) -> list[Path]:
        """Return the files of the source model that a model folder has as they are: its tokenizer and template."""
        return [f for f in sorted(self.model_dir.iterdir()) if f.is_file() and self._is_copied(f.name)]

    def config_file(self) -> tuple[str, bytes]:
        """Return the name and the content of the configuration file of a model folder."""
        if self.kind == "lora":
            return "adapter_config.json", json.dumps(self._lora_config(), indent=2).encode()
        config = json.loads((self.model_dir / "config.json").read_text())
        config.pop("torch_dtype", None)
        config["dtype"] = str(self._served_dtype()).removeprefix("torch.")
        return "config.json", json.dumps(config, indent=2).encode()

    def _saved_name(self, name: str) -> str:
        # peft names an adapter's tensors from its own root, and leaves out the name of the adapter.
        return name if self.peft_model is None else f"base_model.model.{name.replace('.default.', '.')}"

    def _is_copied(self, name: str) -> bool:
        if self.kind == "lora":
            return name.startswith(_TOKENIZER_FILES)
        return not name.endswith(_WEIGHT_SUFFIXES) and name != "config.json" and not name.startswith(".")

    def _served_dtype(self) -> torch.dtype:
        return _compute_dtype(self.machine)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a forward has the dtype of the job's machine."""
        if self.machine.dtype == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.machine.device, torch.bfloat16)

    def _state_dict(self) -> dict[str, Tensor]:
        if self.peft_model is not None:
            from synth.weights.peft_compat import get_peft_model_state_dict

            return get_peft_model_state_dict(self.peft_model)
        # A tied head is the embedding under a second name.
        kept = {n for n, _ in self.model.named_parameters()} | {n for n, _ in self.model.named_buffers()}
        return {n: t for n, t in self.model.state_dict().items() if n in kept}

    def _published(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return full tensors on the CPU of rank 0, under the names that other engines load."""
        return self.published(self._gather_to_cpu(self._state_dict(), dtype))

    def _gather_to_cpu(self, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Gather full tensors to the CPU of rank 0, one at a time, so that no device holds the whole model."""
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = gather_full(tensor.detach())
            if self.process_group.is_main:
                gathered[name] = full.to("cpu", dtype).contiguous()
        return gathered

    def _lora_config(self) -> dict[str, Any] | None:
        if self.peft_model is None:
            return None
        peft_config = self.peft_model.peft_config["default"].to_dict()
        # peft stores the folder of the base, which means nothing on another machine.
        peft_config["base_model_name_or_path"] = self.machine.adapter_base
        peft_config["inference_mode"] = True
        return json.loads(json.dumps(peft_config, default=_to_json, sort_keys=True))


def load_policy(
    model_dir: Path,
    job: TrainingJob,
    machine: Machine = ONE_CPU,
    *,
    adapter_dir: Path | None = None,
    images: ImageLoader | None = None,
    dropout: bool = True,
) -> Policy:
    """Load a model folder (never the network) for training.

    machine: one process on a CPU, if it is not given. model_dir: for mode "qlora" one that
    `nf4.write_rounded_model` wrote.
    adapter_dir: the LoRA adapter of the source model. Mode "full" merges it into the float32 base; the other modes
    continue it if rank and targets agree. images: the loader of the images in its prompts. dropout: False switches
    every dropout off, as RL needs a ratio of exactly 1. Raises `TrainingFailed` (bad_model, adapter_differs).
    """
    model = load_base_model(model_dir, job, machine, _compute_dtype(machine))
    if job.mode == "full" and adapter_dir is not None:
        merge_adapter(model, adapter_dir)
    if job.mode == "qlora":
        replace_with_nf4(model, model_dir)
    peft_model = add_adapter(model, job.lora, machine, adapter_dir, dropout=dropout) if job.lora is not None else None
    if not dropout:
        disable_dropout(model)
    policy = Policy(
        model=model,
        peft_model=peft_model,
        model_dir=model_dir,
        job=job,
        machine=machine,
        layout=job.packing,
        images=images,
    )
    policy.layout = choose_layout(policy)
    if not machine.shards(job):
        # A sharded model moves block by block, and only its shard stays on the device.
        model.to(machine.device)
    if dropout and machine.device == "cpu":
        use_keyed_dropout(model)
    model.train()
    if job.activation_checkpointing:
        contexts = functools.partial(create_selective_checkpoint_contexts, list(ops_saved_by_checkpointing()))
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False, "context_fn": contexts}
        )
        # Otherwise the first block's input has no gradient, and with a frozen base nothing would be trained.
        model.enable_input_require_grads()
    return policy


def _compute_dtype(machine: Machine) -> torch.dtype:
    return torch.bfloat16 if machine.dtype == "bf16" else torch.float32


def _to_json(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(getattr(value, "value", value))
