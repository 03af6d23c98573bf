"""NF4, the 4 bits of QLoRA (arXiv 2305.14314, section 3): a model with its linear layers rounded to them.

A rounded folder holds one set of values twice: its `*.safetensors` are the rounded weights in the source's own dtype,
which any engine serves, and `nf4/` is the same in 4 bits, in the layout of bitsandbytes' checkpoints, which the trainer
keeps in memory. Decoding the second gives exactly the bytes of the first, so that trainer and engine have one base.

Blocks of 64 weights share a scale; 256 scales share one of their own (double quantisation): 4.13 bits a weight. The
rounding always runs on the CPU, so that every machine makes the same bytes of the same source.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from synth.weights.durable import atomic_folder
from synth.weights.policy_file import WeightsError
from synth.weights.tensor_file import load_tensors, save_tensors

#: Where in a rounded folder the 4 bits are.
FOLDER = "nf4"

_BLOCK = 64
_SCALES = 256
_KEY = re.compile(r"(.*\.weight)(\..+)?")


def encode(weight: Tensor) -> dict[str, Tensor]:
    """Return the 4 bits of a weight [out, in] of any float dtype, and the tensors that decoding needs.

    "" holds two weights a byte; the other keys begin with a dot, and are bitsandbytes' own.
    """
    bits = _bitsandbytes()
    codes, plain = bits.quantize_4bit(
        weight.contiguous(), blocksize=_BLOCK, compress_statistics=False, quant_type="nf4"
    )
    # The second quantisation is bitsandbytes' own but for this mean, which torch adds up in an order that depends on
    # the number of threads; a mean of each of several rows it leaves to one thread.
    offset = plain.absmax.expand(2, -1).mean(1)[0]
    absmax, scales = bits.quantize_blockwise(plain.absmax - offset, blocksize=_SCALES)
    state = bits.QuantState(
        absmax=absmax,
        shape=plain.shape,
        dtype=plain.dtype,
        blocksize=_BLOCK,
        code=plain.code,
        quant_type="nf4",
        offset=offset,
        state2=scales,
    )
    parts: dict[str, Tensor] = {f".{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    # Tensors of a safetensors file share no memory; all of one kind have the same two maps.
    return {"": codes} | {name: tensor.clone() for name, tensor in parts.items()}


def quant_state(parts: dict[str, Tensor]) -> Any:
    """Return bitsandbytes' `QuantState` of a result of `encode`, on the device of its tensors."""
    described = {name.removeprefix("."): tensor for name, tensor in parts.items() if name}
    return _bitsandbytes().QuantState.from_dict(described, device=parts[""].device)


def decode(codes: Tensor, state: Any) -> Tensor:
    """Return the rounded weight [out, in], in the dtype that was encoded, on the device of its codes."""
    return _bitsandbytes().dequantize_4bit(codes, state)


def read_codes(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Read the results of `encode` of a rounded folder's weights, by the weight's name.

    Raises `WeightsError` for a folder that is not one.
    """
    files = sorted((folder / FOLDER).glob("*.safetensors"))
    if not files:
        raise WeightsError(
            f"{folder.name} has no {FOLDER}/*.safetensors; expected a model that was rounded to 4 bits; "
            "write one with synth.weights.nf4.write_rounded_model"
        )
    parts: dict[str, dict[str, Tensor]] = {}
    for file in files:
        for key, tensor in load_tensors(file)[0].items():
            weight, part = _KEY.fullmatch(key).groups(default="")  # pyright: ignore[reportOptionalMemberAccess]
            parts.setdefault(weight, {})[part] = tensor
    return parts


def write_rounded_model(source: Path, target: Path) -> None:
    """Write `source` with its linear layers, all but the LM head, rounded to 4 bits, at `target`; whole, or not at all.

    One file of weights is in memory at a time; a core rounds some 25 million weights a second. A target that is there
    already is complete, and is left. Raises `WeightsError` for a model without weights to round.
    """
    if target.exists():
        return
    weights = _linear_weights(source)
    missing = set(weights)
    with atomic_folder(target) as partial:
        (partial / FOLDER).mkdir()
        for file in sorted(source.iterdir()):
            if file.suffix == ".safetensors":
                missing -= _round_file(file, weights, partial)
            elif file.is_file():
                shutil.copy(file, partial / file.name)
        if missing or not weights:
            raise WeightsError(
                f"{source.name} has no weights for {len(missing) or 'any'} linear layers"
                f"{f', first {min(missing)!r}' if missing else ''}; expected a model in safetensors files, "
                "by its own names"
            )


def _round_file(file: Path, weights: set[str], partial: Path) -> set[str]:
    """Round these weights in one file; return the names of the rounded ones."""
    tensors, header = load_tensors(file)
    codes: dict[str, Tensor] = {}
    names = weights & tensors.keys()
    for name in names:
        parts = encode(tensors[name])
        tensors[name] = decode(parts[""], quant_state(parts))
        codes |= {f"{name}{key}": tensor for key, tensor in parts.items()}
    save_tensors(partial / file.name, tensors, header=header or {"format": "pt"})
    if codes:
        save_tensors(partial / FOLDER / file.name, codes)
    return names


def _linear_weights(source: Path) -> set[str]:
    """Return the names of the linear layers' weights; the embedding and the head are not rounded."""
    import torch
    from transformers.models.auto import configuration_auto, modeling_auto

    try:
        config = cast(Any, configuration_auto).AutoConfig.from_pretrained(source, local_files_only=True)
        sees = getattr(config, "vision_config", None) is not None
        models: Any = modeling_auto.AutoModelForImageTextToText if sees else modeling_auto.AutoModelForCausalLM
        with torch.device("meta"):
            model = models.from_config(config)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{source.name} is not a causal LM: {error}") from error
    head = model.get_output_embeddings()
    return {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}


def _bitsandbytes() -> Any:
    # It takes seconds to import, most of it torch's compiler, and is needed by QLoRA alone. It warns of an optional
    # package for CPUs, which its own layers would use; the trainer's do not.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import bitsandbytes.functional

    return bitsandbytes.functional
