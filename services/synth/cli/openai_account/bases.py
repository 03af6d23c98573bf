"""The open base that takes the place of a model of OpenAI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.models.table import QWEN3, ModelSpec

#: Parameters in billions of an open base for a model of OpenAI, by the beginning of its id: the longest match counts.
#: OpenAI publishes no sizes; these follow the prices of the models.
_SIZES = {
    "gpt-4.1-nano": 4.0,
    "gpt-4.1-mini": 8.0,
    "gpt-4.1": 32.0,
    "gpt-4o-mini": 8.0,
    "gpt-4o": 32.0,
    "gpt-4": 32.0,
    "gpt-3.5": 8.0,
    "o4-mini": 14.0,
    "davinci": 14.0,
    "babbage": 1.7,
}
_OTHER = 8.0


@dataclass(frozen=True)
class Needs:
    """The needs of a job's rows for its base. images: some row has one. longest: bytes of the longest row."""

    rows: int = 0
    images: bool = False
    longest: int = 0


@dataclass(frozen=True)
class Proposal:
    """A base and the reason for it. local: its size is not known here."""

    id: str
    reason: str
    local: bool = False


def propose_base(model: str, needs: Needs, *, online: bool, available: Sequence[str] | None) -> Proposal:
    """Propose a base for a model of OpenAI.

    online: it is trained by reinforcement. available: the bases of the cluster; None if they are not known.
    """
    target = wanted_size(model)
    hosted = [spec for spec in QWEN3.values() if not spec.experimental and not spec.id.endswith("-FP8")]
    fitting = [spec for spec in hosted if _fits(spec, needs, online=online)]
    here = [spec for spec in fitting if available is None or spec.id in available]
    others = sorted(set(available or ()) - set(QWEN3))
    if not here and others:
        return Proposal(others[0], f"a base of the cluster; {model} has no nearer one there", local=True)
    best = min(here or fitting, key=lambda spec: _distance(spec, target))
    images = ", and it sees images" if best.vision else ""
    missing = "" if here else "; the cluster does not have it"
    return Proposal(best.id, f"instead of {model}: about {target:g} billion parameters{images}{missing}")


def wanted_size(model: str) -> float:
    """Return the size, in billions of parameters, of the base that is proposed for a model of OpenAI."""
    base = model.split(":")[1] if model.startswith("ft:") and ":" in model else model
    matches = [name for name in _SIZES if base.startswith(name)]
    return _SIZES[max(matches, key=len)] if matches else _OTHER


def _fits(spec: ModelSpec, needs: Needs, *, online: bool) -> bool:
    if (spec.vision is not None) != needs.images:
        return False
    return (spec.rl if online else spec.sft) and not spec.thinking and "Coder" not in spec.id


def _distance(spec: ModelSpec, wanted: float) -> tuple[float, bool, str]:
    """Return a base's distance from the size, by its logarithm; a dense base is preferred to a mixture of experts."""
    size = spec.parameters or 1.0
    return max(size / wanted, wanted / size), spec.experts, spec.id
