"""The model registry: which ids exist, what may be done with each, and where the local ones lie.

Three kinds of id: a Qwen3 base (`Qwen/Qwen3-0.6B`), a directory below `models_dir` that holds a `config.json`
(`tiny-qwen3`, or `Qwen/Qwen3-0.6B`, which then gives that base its weights), and a fine-tuned id
(`rl:<base>:<job_id>[:<checkpoint>]`, decision 18). Whether a fine-tuned model was really made, the log knows;
here its shape and its base are checked.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from synth.errors import Problem, UserError

Prefix = Literal["ft", "fft", "peft", "qft", "rl"]
_PREFIXES: dict[str, Prefix] = {"ft": "ft", "fft": "fft", "peft": "peft", "qft": "qft", "rl": "rl"}

_KNOWN_S = 1.0
_LOCAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SEGMENT = re.compile(r"[A-Za-z0-9_.-]+")
_FAMILIES = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_vl": "qwen3-vl",
    "qwen3_vl_moe": "qwen3-vl",
}
_ATTENTION_AND_MLP = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"
_PROJECTOR = r".*visual\.(merger|deepstack_merger_list\.\d+)\.linear_fc[12]"
LORA_TARGETS: dict[str, str] = {
    "qwen3": "all-linear",
    # `all-linear` would adapt the whole vision tower; Qwen3-VL has no module called `mm_projector`.
    "qwen3-vl": f"({_ATTENTION_AND_MLP}|{_PROJECTOR})",
}


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one model id.

    base: the id of the base that it was made from; its own id when it is a base.
    path: the local directory of the base's weights, None when they are not on this machine.
    rl, sft: what it may be trained with. prefix, job_id, checkpoint: of a fine-tuned id, else None.
    lora_targets: the modules that a LoRA adapts when the job does not say: "all-linear", or a regex.
    """

    id: str
    base: str
    family: str
    rl: bool
    sft: bool
    experimental: bool = False
    thinking: bool = False
    vision: bool = False
    path: str | None = None
    prefix: Prefix | None = None
    job_id: str | None = None
    checkpoint: str | None = None
    lora_targets: str


@dataclass(frozen=True)
class FineTunedId:
    """The parts of `rl:Qwen/Qwen3-0.6B:job_7f:step_20`."""

    prefix: Prefix
    base: str
    job_id: str
    checkpoint: str | None = None

    def __str__(self) -> str:
        return format_finetuned(self.prefix, self.base, self.job_id, checkpoint=self.checkpoint)


def format_finetuned(prefix: Prefix, base: str, job_id: str, *, checkpoint: str | None = None) -> str:
    """The id under which a job's model is served: `<prefix>:<base>:<job_id>[:<checkpoint>]`."""
    return ":".join([prefix, base, job_id, *([checkpoint] if checkpoint else [])])


def parse_finetuned(model_id: str) -> FineTunedId | None:
    """Take a fine-tuned id apart; None when it has not the shape of one. The base is not looked up."""
    prefix, *rest = model_id.split(":")
    known = _PREFIXES.get(prefix)
    if known is None or len(rest) not in (2, 3) or not all(_SEGMENT.fullmatch(s) for s in rest[1:]):
        return None
    return FineTunedId(known, rest[0], rest[1], rest[2] if len(rest) == 3 else None)


def _table() -> dict[str, ModelSpec]:
    """The 36 hosted Qwen3 ids and what each may do (wire contract §4)."""
    # names, rl, experimental, thinking
    rows: list[tuple[str, bool, bool, bool]] = [
        ("0.6B 1.7B 4B 8B 14B 30B-A3B 4B-2507", True, False, False),
        ("32B", False, False, False),
        ("4B-Instruct-2507 4B-Instruct-2507-FP8", True, False, False),
        ("30B-A3B-Instruct-2507 30B-A3B-Instruct-2507-FP8", True, False, False),
        ("235B-A22B-Instruct-2507 235B-A22B-Instruct-2507-FP8", False, True, False),
        ("4B-Thinking-2507 4B-Thinking-2507-FP8", True, True, True),
        ("30B-A3B-Thinking-2507 30B-A3B-Thinking-2507-FP8", True, True, True),
        ("235B-A22B-Thinking-2507 235B-A22B-Thinking-2507-FP8", False, True, True),
        ("Coder-30B-A3B-Instruct Coder-30B-A3B-Instruct-FP8", True, False, False),
        ("Coder-480B-A35B-Instruct Coder-480B-A35B-Instruct-FP8", False, True, False),
        ("VL-2B-Instruct VL-4B-Instruct VL-8B-Instruct", True, False, False),
        ("VL-2B-Thinking VL-4B-Thinking VL-8B-Thinking", True, False, True),
        ("VL-30B-A3B-Instruct VL-32B-Instruct VL-235B-A22B-Instruct", False, False, False),
        ("VL-30B-A3B-Thinking VL-32B-Thinking VL-235B-A22B-Thinking", False, False, True),
    ]
    specs: dict[str, ModelSpec] = {}
    for names, rl, experimental, thinking in rows:
        for name in names.split():
            vision = name.startswith("VL-")
            family = "qwen3-vl" if vision else "qwen3"
            specs[f"Qwen/Qwen3-{name}"] = ModelSpec(
                id=f"Qwen/Qwen3-{name}",
                base=f"Qwen/Qwen3-{name}",
                family=family,
                rl=rl,
                sft=True,
                experimental=experimental,
                thinking=thinking,
                vision=vision,
                lora_targets=LORA_TARGETS[family],
            )
    return specs


QWEN3 = _table()


class Registry:
    """The models that jobs and requests may name: the Qwen3 table and the directories of `models_dir`."""

    def __init__(self, models_dir: Path | None = None) -> None:
        self.models_dir = models_dir
        self._known: tuple[float, dict[str, ModelSpec]] = (0.0, {})

    def find(self, model_id: str, *, where: str = "") -> ModelSpec:
        """The spec of a base or fine-tuned id; base ids match in any case.

        where: the place that named the model, for the error. Raises UserError with the nearest known id.
        What was found is believed for a second: every chat call asks.
        """
        since, known = self._known
        if time.monotonic() - since > _KNOWN_S:
            self._known = (time.monotonic(), known := {})
        if model_id not in known:
            known[model_id] = self._find(model_id, where=where)
        return known[model_id]

    def _find(self, model_id: str, *, where: str) -> ModelSpec:
        bases = self._directories()
        finetuned = parse_finetuned(model_id)
        if finetuned is not None:
            base = self._base(finetuned.base, bases, where=where)
            return msgspec.structs.replace(
                base,
                id=str(finetuned),
                prefix=finetuned.prefix,
                job_id=finetuned.job_id,
                checkpoint=finetuned.checkpoint,
            )
        if ":" in model_id:
            raise UserError(
                Problem(
                    what=f"{_short(model_id)} is not a fine-tuned model id",
                    expected=f"<prefix>:<base>:<job_id>[:<checkpoint>] with a prefix of {', '.join(_PREFIXES)}",
                    fix="copy the id that `synthctl models ls` shows",
                    where=where or "model",
                )
            )
        return self._base(model_id, bases, where=where)

    def bases(self) -> list[ModelSpec]:
        """Every base id, those with weights on this machine first.

        A directory that is no model of ours is left out: `find` says what is wrong with it, to who asks for it.
        """
        local = self._directories()
        specs: list[ModelSpec] = []
        for model_id in local:
            with contextlib.suppress(UserError):
                specs.append(self._base(model_id, local, where=str(self.models_dir)))
        return specs + [s for i, s in QWEN3.items() if i not in local]

    def _base(self, model_id: str, local: dict[str, Path], *, where: str) -> ModelSpec:
        by_lower = {i.lower(): i for i in (*QWEN3, *local)}
        canonical = by_lower.get(model_id.lower())
        if canonical is None:
            near = difflib.get_close_matches(model_id.lower(), by_lower, n=1, cutoff=0.6)
            fix = f"did you mean {by_lower[near[0]]!r}?" if near else "`synthctl models ls` shows them"
            raise UserError(
                Problem(
                    what=f"unknown model {_short(model_id)}",
                    expected="a Qwen3 id, a directory of the models folder, or a fine-tuned id",
                    fix=fix,
                    where=where or "model",
                )
            )
        path = local.get(canonical)
        if canonical in QWEN3:
            return msgspec.structs.replace(QWEN3[canonical], path=str(path) if path else None)
        return _local_spec(canonical, local[canonical])

    def _directories(self) -> dict[str, Path]:
        """Model id -> directory, one or two levels below `models_dir`; read anew, so that new ones are seen."""
        if self.models_dir is None or not self.models_dir.is_dir():
            return {}
        found: dict[str, Path] = {}
        for child in sorted(self.models_dir.iterdir()):
            if not child.is_dir() or not _LOCAL_NAME.fullmatch(child.name):
                continue
            if (child / "config.json").is_file():
                found[child.name] = child
                continue
            for grandchild in sorted(child.iterdir()):
                if _LOCAL_NAME.fullmatch(grandchild.name) and (grandchild / "config.json").is_file():
                    found[f"{child.name}/{grandchild.name}"] = grandchild
        return found


def _local_spec(model_id: str, path: Path) -> ModelSpec:
    config = path / "config.json"
    try:
        loaded = json.loads(config.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(
            Problem(
                what=f"the model {model_id!r} has a config.json that is not JSON ({error})",
                fix="copy the model directory again",
                where=str(config),
            )
        ) from error
    fields: dict[str, Any] = cast(dict[str, Any], loaded) if isinstance(loaded, dict) else {}
    model_type = str(fields.get("model_type"))
    family = _FAMILIES.get(model_type)
    if family is None:
        raise UserError(
            Problem(
                what=f"the model {model_id!r} is of type {model_type!r}, which cannot be trained here",
                expected=f"a model_type of {', '.join(_FAMILIES)}",
                where=str(config),
            )
        )
    return ModelSpec(
        id=model_id,
        base=model_id,
        family=family,
        rl=True,
        sft=True,
        vision=family == "qwen3-vl",
        path=str(path),
        lora_targets=LORA_TARGETS[family],
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
