"""The model in training: loaded from a local folder, whole or through a LoRA adapter, and written back out.

Master weights are float32. With dtype "bf16" the forward runs under autocast and what is served is cast, because
AdamW at 1e-6 on bfloat16 weights rounds most of its updates away. Only the LoRA paths import peft.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from synth.trainer.config import Recipe, SftRecipe
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import MicroBatch
from synth.trainer.learner.distributed.dtensor import spread_like, whole
from synth.trainer.learner.distributed.process_group import ALONE, Ranks
from synth.trainer.learner.model.logprobs import token_logprobs
from synth.trainer.learner.model.qlora import quantise
from synth.trainer.learner.model.varlen_attention import choose, ends_of, kept_by_checkpoints
from synth.weights.policy_file import Kind, load_tensors, merge_lora, save_tensors, write_atomically, write_policy

if TYPE_CHECKING:
    from synth.trainer.learner.distributed.fsdp import Sharded

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".index.json")
_TOKENIZER_FILES = ("tokenizer", "special_tokens", "added_tokens", "vocab", "merges", "chat_template")


@dataclass
class Policy:
    """A causal language model and what of it is trained.

    model: the Hugging Face model, with LoRA layers in place unless the mode is "full" (peft wraps them as `adapted`).
    ranks: who trains it together, after `spread`; then every rank calls each method that computes, gathers or writes.
    """

    model: Any
    adapted: Any | None
    model_dir: Path
    recipe: Recipe
    ranks: Ranks = ALONE
    _sharded: Sharded | None = field(default=None, repr=False)

    @property
    def kind(self) -> Kind:
        return "full" if self.adapted is None else "lora"

    @property
    def device(self) -> torch.device:
        return torch.device(self.recipe.device)

    @property
    def eos_ids(self) -> set[int]:
        """The tokens that end a turn, by the generation config, else the model config."""
        found = getattr(self.model.generation_config, "eos_token_id", None) or self.model.config.eos_token_id
        return set(found) if isinstance(found, list) else {found} - {None}

    def spread(self, ranks: Ranks) -> None:
        """Train it together with the other ranks, which hold the same weights; the first thing done with it."""
        self.ranks = ranks
        if self.recipe.sharded:
            from synth.trainer.learner.distributed.fsdp import Sharded

            self._sharded = Sharded(self.model, self._score, self.recipe)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in the model's own order."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def names(self) -> set[str]:
        """The names in a `snapshot`."""
        return {self._filed(name) for name in self.trainable()}

    def snapshot(self) -> dict[str, Tensor]:
        """The trained parameters in float32, on the CPU, as a model's file names them; `load` puts them back.

        Rank 0's to use: on the others it is empty.
        """
        return self._gathered({self._filed(n): p for n, p in self.trainable().items()}, torch.float32)

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Overwrite the trained parameters with those of a `snapshot`. Raises `KeyError` when one is missing."""
        for name, parameter in self.trainable().items():
            parameter.copy_(spread_like(tensors[self._filed(name)], parameter))

    def logprobs(self, micro: MicroBatch, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """logp_N (float32, nats, of the micro-batch's trained tokens) and entropy_N (without gradient)."""
        score = self._score if self._sharded is None else self._sharded.score
        return score(micro, temperature=temperature)

    def _score(self, micro: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        # No attention mask: rows are padded on the right, where causal attention never looks, and packed rows
        # are told apart by where they end, or by position ids that restart.
        with self._autocast():
            out = self.model.base_model(
                input_ids=micro.input_ids_BL,
                position_ids=micro.position_ids_BL,
                use_cache=False,
                **ends_of(micro.position_ids_BL),
            )
        hidden_ND, head_VD = (
            out.last_hidden_state.flatten(0, 1)[micro.predict_N],
            self.model.get_output_embeddings().weight,
        )
        if isinstance(self.recipe, SftRecipe):
            # A ratio of two policies wants what float32 masters leave in the hidden state; a cross-entropy does not.
            hidden_ND, head_VD = hidden_ND.to(_compute_dtype(self.recipe)), head_VD.to(_compute_dtype(self.recipe))
        return token_logprobs(hidden_ND, head_VD, micro.target_N, temperature=temperature)

    def write_serving(self, path: Path, *, version: int) -> dict[str, str]:
        """Write the weights to serve, in the served dtype. Returns the digest of each tensor, on rank 0."""
        tensors = self._gathered(self._state(), self._served_dtype())
        if not self.ranks.leads:
            return {}
        return write_policy(path, tensors, kind=self.kind, version=version, lora=self._lora_config())

    @property
    def weights_file(self) -> str:
        """What a model folder calls its weights."""
        return "model.safetensors" if self.kind == "full" else "adapter_model.safetensors"

    def write_model(self, folder: Path, *, exact: bool = False) -> None:
        """Write the model as it stands: a Hugging Face folder, or an adapter's, with its tokenizer and template.

        exact: the float32 masters, to train on from; else what is served.
        """
        tensors = self._gathered(self._state(), torch.float32 if exact else self._served_dtype())
        if not self.ranks.leads:
            return
        folder.mkdir(parents=True)
        save_tensors(folder / self.weights_file, tensors, header={"format": "pt"})
        for source in sorted(self.model_dir.iterdir()):
            if source.is_file() and self._travels(source.name):
                shutil.copyfile(source, folder / source.name)
        if self.kind == "full":
            _write_config(self.model_dir, folder, self._served_dtype())
        else:
            write_atomically(folder / "adapter_config.json", json.dumps(self._lora_config(), indent=2).encode())

    def _filed(self, name: str) -> str:
        # peft names an adapter's tensors from its own root, and leaves out which of a layer's adapters they are of.
        return name if self.adapted is None else f"base_model.model.{name.replace('.default.', '.')}"

    def _travels(self, name: str) -> bool:
        if self.kind == "lora":
            return name.startswith(_TOKENIZER_FILES)
        return not name.endswith(_WEIGHT_SUFFIXES) and name != "config.json" and not name.startswith(".")

    def _served_dtype(self) -> torch.dtype:
        return _compute_dtype(self.recipe)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.recipe.dtype == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.recipe.device, torch.bfloat16)

    def _state(self) -> dict[str, Tensor]:
        if self.adapted is not None:
            from synth.weights.peft_compat import get_peft_model_state_dict

            return get_peft_model_state_dict(self.adapted)
        # A tied head is the embedding under a second name.
        kept = {n for n, _ in self.model.named_parameters()} | {n for n, _ in self.model.named_buffers()}
        return {n: t for n, t in self.model.state_dict().items() if n in kept}

    def _gathered(self, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Whole tensors on the CPU, for rank 0; one at a time, so that no device holds the whole model."""
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            complete = whole(tensor.detach())
            if self.ranks.leads:
                gathered[name] = complete.to("cpu", dtype).contiguous()
        return gathered

    def _lora_config(self) -> dict[str, Any] | None:
        if self.adapted is None:
            return None
        config = self.adapted.peft_config["default"].to_dict()
        # peft notes the folder of the base, which means nothing on another machine.
        config["base_model_name_or_path"] = None
        config["inference_mode"] = True
        return json.loads(json.dumps(config, default=_plain, sort_keys=True))


def load_policy(model_dir: Path, recipe: Recipe, *, adapter_dir: Path | None = None, dropout: bool = True) -> Policy:
    """Load a model folder (never the network) for training.

    model_dir: for mode "qlora" one that `nf4.write_rounded_model` wrote.
    adapter_dir: a LoRA adapter that the source model consists of. Mode "full" merges it into the float32 base, the
    others continue it when rank and targets agree. dropout False switches every dropout off: RL needs a
    ratio of exactly 1. Raises `TrainingFailed` (bad_model, adapter_differs).
    """
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        # A frozen base can be as small as what is served; a trained one is the float32 master.
        frozen_half = recipe.mode != "full" and recipe.dtype == "bf16"
        config: Any = AutoConfig.from_pretrained(str(model_dir), local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(model_dir),
            config=config,
            dtype=torch.bfloat16 if frozen_half else torch.float32,
            attn_implementation=choose(config, torch.device(recipe.device), _compute_dtype(recipe)),
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        raise TrainingFailed("bad_model", f"{model_dir.name} cannot be loaded as a causal LM: {error}") from error
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise TrainingFailed("bad_model", f"{model_dir.name} has an LM head with a bias; expected none")
    model.config.use_cache = False
    if recipe.mode == "full" and adapter_dir is not None:
        merge_adapter(model, adapter_dir)
    if recipe.mode == "qlora":
        quantise(model, model_dir)
    adapted = _adapt(model, recipe, adapter_dir, dropout=dropout) if recipe.mode != "full" else None
    if not dropout:
        _switch_dropout_off(model)
    if not recipe.sharded:
        # Else each block goes there by itself, and only a share of it stays.
        model.to(recipe.device)
    model.train()
    if recipe.activation_checkpointing:
        contexts = functools.partial(create_selective_checkpoint_contexts, list(kept_by_checkpoints()))
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False, "context_fn": contexts}
        )
        # Otherwise the first block's input has no gradient, and a frozen base then trains nothing.
        model.enable_input_require_grads()
    return Policy(model=model, adapted=adapted, model_dir=model_dir, recipe=recipe)


def merge_adapter(model: Any, adapter_dir: Path) -> None:
    """Fold the adapter of a folder into the loaded float32 model."""
    config = json.loads((adapter_dir / "adapter_config.json").read_text())
    adapter, _ = load_tensors(adapter_dir / "adapter_model.safetensors")
    model.load_state_dict(merge_lora(untied(model.state_dict()), adapter, config), strict=False)
    model.tie_weights()


def untied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict without the second name of a tensor that has two: the tied LM head."""
    seen: set[int] = set()
    return {n: t for n, t in state.items() if not (t.data_ptr() in seen or seen.add(t.data_ptr()))}


def _adapt(model: Any, recipe: Recipe, adapter_dir: Path | None, *, dropout: bool) -> Any:
    from synth.weights.peft_compat import LoraConfig, PeftModel, get_peft_model

    wanted = _wanted_modules(model, recipe)
    if adapter_dir is not None:
        adapted: Any = PeftModel.from_pretrained(model, str(adapter_dir), is_trainable=True)
        found = adapted.peft_config["default"]
        agrees = (found.r, found.lora_alpha) == (recipe.lora.r, recipe.lora.alpha)
        if not agrees or set(adapted.targeted_module_names) != wanted:
            raise TrainingFailed(
                "adapter_differs",
                f"the source adapter has rank {found.r}, alpha {found.lora_alpha} and "
                f"{len(adapted.targeted_module_names)} target modules; the recipe asks for rank {recipe.lora.r}, "
                f"alpha {recipe.lora.alpha} and {len(wanted)}; ask for the same, or merge the adapter into its "
                "base first and start from that",
            )
        for layer in adapted.modules():
            if isinstance(getattr(layer, "lora_dropout", None), nn.ModuleDict):
                layer.lora_dropout["default"] = nn.Dropout(recipe.lora.dropout if dropout else 0.0)
        return _cast_by_autocast(adapted, recipe)
    adapted = get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=recipe.lora.r,
            lora_alpha=recipe.lora.alpha,
            lora_dropout=recipe.lora.dropout if dropout else 0.0,
            target_modules=sorted(wanted),
        ),
    )
    return _cast_by_autocast(adapted, recipe)


def _cast_by_autocast(adapted: Any, recipe: Recipe) -> Any:
    # peft casts what enters an adapter to float32, which autocast casts back, in every layer, for the same figures.
    if recipe.dtype == "bf16":
        for layer in adapted.modules():
            if hasattr(layer, "lora_A"):
                layer.cast_input_dtype_enabled = False
    return adapted


def _wanted_modules(model: Any, recipe: Recipe) -> set[str]:
    from synth.weights.peft_compat import LoraConfig, check_target_module_exists

    head = model.get_output_embeddings()
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    if recipe.lora.targets == "all-linear":
        return {n for n, m in linear.items() if m is not head}
    config = LoraConfig(target_modules=recipe.lora.targets)
    wanted = {n for n in linear if check_target_module_exists(config, n)}
    if not wanted or any(linear[n] is head for n in wanted):
        raise TrainingFailed(
            "bad_recipe",
            f"recipe.lora.targets {recipe.lora.targets!r} name {'the LM head' if wanted else 'no linear layer'}; "
            'expected linear layers below the head; use "all-linear"',
        )
    return wanted


def _switch_dropout_off(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            vars(module)["attention_dropout"] = 0.0


def _compute_dtype(recipe: Recipe) -> torch.dtype:
    return torch.bfloat16 if recipe.dtype == "bf16" else torch.float32


def _write_config(model_dir: Path, folder: Path, dtype: torch.dtype) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(getattr(value, "value", value))
