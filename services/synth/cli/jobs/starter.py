"""Job files to start from, with values that fit the size of their model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from synth.errors import UserError
from synth.models.config_shape import read_shape
from synth.models.finetuned import parse_finetuned
from synth.models.folder import read_model_config
from synth.models.hosted_shapes import known_shape

_STARTERS = Path(__file__).parents[1] / "starters"
#: The column of the comments in the starter files.
_COLUMN = 36
#: Models below this size are toys that start from noise: an adapter teaches them nothing, and they take large steps.
_TOY = 50e6
#: From this size on, the learning rates of adapters are halved.
_LARGE = 15e9
_LINE = re.compile(r"^(?P<key>\w+) = (?P<value>\"[^\"]*\"|[^#\n]*?) *(?P<comment>#.*)?$", re.MULTILINE)
_LORA = re.compile(r"^\[lora\].*\n(?:.+\n)*\n", re.MULTILINE)

#: The changes of the starter file for a toy, by kind of job, as TOML. `a.b` renames the key a to b.
_TOY_VALUES: dict[str, dict[str, str]] = {
    "sft": {"variety": '"fft"', "mode": '"full_finetune"', "n_epochs.total_steps": "1000", "learning_rate": "5e-3"},
    "dpo": {"variety": '"fft"', "mode": '"full_finetune"', "learning_rate": "2e-4"},
    "rl": {
        "trainer_mode": '"full"',
        "iterations_per_epoch": "30",
        "batch_size": "16",
        "learning_rate": "2e-4",
        "async_level": "0",
        "every_n_iters": "10",
    },
    "eval": {},
}
#: The same for models of at least `_LARGE` parameters.
_LARGE_VALUES: dict[str, dict[str, str]] = {
    "sft": {"learning_rate": "1e-4"},
    "dpo": {"learning_rate": "5e-6"},
    "rl": {"learning_rate": "5e-6"},
    "eval": {},
}
#: Comments of the starter file that hold for adapters alone.
_TOY_COMMENTS = {
    "variety": "every weight; an adapter cannot teach a model this small",
    "mode": "",
    "trainer_mode": "every weight; an adapter cannot teach a model this small",
    "total_steps": "optimizer steps; the model starts from noise, so that one pass over a few rows is too little",
    "learning_rate": "high, as the model is tiny",
    "async_level": "strictly on-policy",
}


@dataclass(frozen=True)
class ModelFacts:
    """The known facts of a model. parameters: their count; context: the longest sequence in tokens; None if unknown."""

    id: str
    trained: bool
    parameters: int | None
    context: int | None


def model_facts(model_id: str, models_dir: Path, *, runs_as: str | None = None) -> ModelFacts:
    """Read the size of a base or trained model: from its folder in `models_dir`, or from what hosted ids are known as.

    runs_as: the local model that stands in for it.
    """
    finetuned = parse_finetuned(model_id)
    base = runs_as or (finetuned.base if finetuned else model_id)
    shape = read_shape(models_dir / base) or known_shape(base)
    return ModelFacts(model_id, finetuned is not None, shape and shape.parameters, _context(models_dir / base))


def starter(kind: str, model: ModelFacts | None, *, vision: bool) -> str:
    """Return the text of a job file. model: None keeps the model of the starter file, and its values."""
    text = (_STARTERS / f"{kind}{'_vision' if vision else ''}.toml").read_text()
    if model is None:
        return text
    key = "model" if kind != "rl" else "base.source" if model.trained else "base"
    values = {key: f'"{model.id}"'}
    comments = {"base": "or source, a model that was trained here", "source": "or base, a base model"}
    if model.parameters is not None and model.parameters < _TOY:
        values |= _TOY_VALUES[kind]
        comments |= _TOY_COMMENTS
        text = _LORA.sub("", text)
        if kind == "rl" and not model.trained:
            comments["base"] = "it starts from noise and earns nothing: train it by SFT first, and name that model"
    elif model.parameters is not None and model.parameters >= _LARGE:
        values |= _LARGE_VALUES[kind]
    if model.context is not None:
        # A prompt has at least as much room as the answer.
        values |= {name: str(min(int(_value(text, name)), room)) for name, room in _room(model.context, text)}
    for key, value in values.items():
        text = _with(text, key, value, comments)
    return text


def _room(context: int, text: str) -> list[tuple[str, int]]:
    room = [("sequence_length", context), ("max_tokens", max(1, context // 2))]
    return [(name, limit) for name, limit in room if re.search(rf"^{name} = ", text, re.MULTILINE)]


def _value(text: str, key: str) -> str:
    return next(line["value"] for line in _LINE.finditer(text) if line["key"] == key)


def _with(text: str, key: str, value: str, comments: dict[str, str]) -> str:
    """Return the text with another value of a key; a key that is behind # is written. Comments stay in their column."""
    key, _, renamed = key.partition(".")
    name = renamed or key

    def replace(line: re.Match[str]) -> str:
        if line["key"] != key:
            return line[0]
        comment = comments.get(name, (line["comment"] or "").removeprefix("# "))
        start = f"{name} = {value}"
        return f"{start.ljust(_COLUMN - 1)} # {comment}" if comment else start

    return _LINE.sub(replace, re.sub(rf"^# ({key} = )", r"\1", text, flags=re.MULTILINE))


def _context(folder: Path) -> int | None:
    try:
        config = read_model_config(folder.name, folder)
    except (OSError, UserError):
        return None
    text = cast(dict[str, Any], config.get("text_config") or config)
    longest = text.get("max_position_embeddings")
    return longest if isinstance(longest, int) else None
