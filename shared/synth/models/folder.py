"""Check the folder of a model without loading it: whether it is complete, and is the model of its id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from synth.errors import UserError
from synth.models.architectures import FAMILIES, family_of_config
from synth.models.table import ModelSpec

#: Says how images become patches; a model that sees has one.
PROCESSOR_FILE = "preprocessor_config.json"


def read_model_config(model_id: str, path: Path) -> dict[str, Any]:
    """Return the `config.json` of a model's folder. Raises `UserError` if it is not JSON."""
    config = path / "config.json"
    try:
        loaded = json.loads(config.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"the model {model_id!r} has a config.json that is not JSON ({error})",
            fix="copy the model directory again",
            where=str(config),
        ) from error
    return cast(dict[str, Any], loaded) if isinstance(loaded, dict) else {}


def context_of(config: dict[str, Any]) -> int | None:
    """Return the context length of a `config.json`, in tokens; None if it has none."""
    text = config.get("text_config")
    for table in (config, cast(dict[str, Any], text) if isinstance(text, dict) else {}):
        tokens = table.get("max_position_embeddings")
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0:
            return tokens
    return None


def check_folder(spec: ModelSpec, path: Path) -> None:
    """Raise `UserError` for a folder that is not whole, holds another model than its id names, or lacks a processor."""
    actual = family_of_config(read_model_config(spec.base, path))
    types = ", ".join(model_type for model_type, family in FAMILIES.items() if family == spec.family) or spec.family
    if actual != spec.family:
        raise UserError(
            f"the folder of {spec.base!r} holds a model of the family {actual}, and the id is one of {spec.family}",
            expected=f"a config.json with a model_type of {types}",
            fix="put the model's own files there",
            where=str(path / "config.json"),
        )
    if spec.vision is not None and not (path / PROCESSOR_FILE).is_file():
        raise UserError(
            f"{spec.base!r} is a vision model without an image processor",
            expected=f"a {PROCESSOR_FILE} beside its config.json",
            fix=f"fetch it again: `synthctl models pull {spec.base}`",
            where=str(path / PROCESSOR_FILE),
        )

    if (missing := missing_weights(path)) is not None:
        raise UserError(
            f"the folder of {spec.base!r} is not whole: {missing}",
            expected="every weight file of the model, as safetensors",
            fix=f"fetch or copy it again: `synthctl models pull {spec.base}` continues a stopped download",
            where=str(path),
        )


def missing_weights(path: Path) -> str | None:
    """Return which weight files a model's folder lacks, by their names and sizes; None if it is complete."""
    files = {file.name for file in path.glob("*.safetensors")}
    for index in sorted(path.glob("*.safetensors.index.json")):
        try:
            named = set(cast(dict[str, str], json.loads(index.read_bytes())["weight_map"]).values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{index.name} cannot be read"
        if lacking := sorted(named - files):
            return f"{len(lacking)} of its {len(named)} weight files are missing, first {lacking[0]}"
    if not files:
        return "it has no weights in safetensors files"
    return next((fault for name in sorted(files) if (fault := _cut_short(path / name)) is not None), None)


def _cut_short(file: Path) -> str | None:
    """Return how a safetensors file is shorter than its own header requires, or None."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or 8 + length > size:
            return f"{file.name} is cut short: it has {size} bytes"
        try:
            header = cast(dict[str, Any], json.loads(opened.read(length)))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return f"{file.name} has no header of safetensors"
    whole = 8 + length + max(ends, default=0)
    return None if size >= whole else f"{file.name} is cut short: it has {size} of {whole} bytes"


def processor_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a folder's image processor that affect an image's patches; {} if it has none."""
    try:
        loaded = json.loads((path / PROCESSOR_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    names = ("do_resize", "do_rescale", "do_normalize", "image_mean", "image_std", "merge_size", "patch_size")
    names += ("resample", "rescale_factor", "size", "min_pixels", "max_pixels", "temporal_patch_size")
    return {name: loaded[name] for name in names if name in loaded} if isinstance(loaded, dict) else {}
