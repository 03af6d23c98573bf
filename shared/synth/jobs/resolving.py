"""What resolving any kind of job needs: the flags, the record of origins, and the rules that kinds share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel

from synth.errors import Problem, UserError
from synth.jobs.resolved import LoraSettings, Mode
from synth.jobs.sections import Lora, PolicyConfig, Tags
from synth.jobs.toml import Document, Path
from synth.models import ModelSpec, Registry

_T = TypeVar("_T")
_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens")
_THINKING = ("thinking_mode", "thinking_budget")
DEFAULT_MAX_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What flags, or the fields of a request beside its config, put in place of the file. None: as in the file."""

    model: str | None = None
    training_file: str | None = None
    validation_file: str | None = None
    task_url: str | None = None
    examples: int | None = None
    seed: int | None = None
    allow_experimental: bool = False


@dataclass
class Resolving:
    """One resolve in progress: collects problems, warnings and origins."""

    document: Document
    overrides: Overrides
    registry: Registry
    warnings: list[str]
    problems: list[Problem] = field(default_factory=list[Problem])
    origins: dict[str, str] = field(default_factory=dict[str, str])

    def problem(self, path: Path, what: str, *, expected: str = "", fix: str = "") -> None:
        self.problems.append(Problem(what=what, expected=expected, fix=fix, where=self.document.where(path)))

    def warn(self, path: Path, sentence: str) -> None:
        self.warnings.append(f"{self.document.where(path)} {sentence}")

    def note(self, key: str, value: _T, origin: str) -> _T:
        """Record where a value of the job came from, and pass it through."""
        self.origins[key] = origin
        return value

    def take(self, key: str, section: BaseModel, name: str, default: Any = None) -> Any:
        """A section's field; `default` where the schema leaves it open. The origin follows from what was written."""
        value = getattr(section, name)
        written = name in section.model_fields_set and value is not None
        return self.note(key, default if value is None else value, "file" if written else "default")

    def model(self, model_id: str | None, path: Path, *, use: Literal["rl", "sft", "eval"]) -> ModelSpec | None:
        """Look the model up and check that this kind of job may use it; None when there is a problem."""
        if self.overrides.model is not None:
            model_id, where = self.note("model", self.overrides.model, "flag"), "--model"
        else:
            self.note("model", model_id, "file")
            where = self.document.where(path)
        if model_id is None:
            return None
        try:
            spec = self.registry.find(model_id, where=where)
        except UserError as error:
            self.problems += error.problems
            return None
        self.note("base_model", spec.base, "registry")
        allowed = {"rl": spec.rl, "sft": spec.sft, "eval": True}[use]
        if not allowed:
            what = f"{spec.id!r} cannot be trained with {use.upper()}"
            self.problems.append(Problem(what=what, fix="`synthctl models ls` shows which can", where=where))
        if spec.experimental and not self.overrides.allow_experimental:
            what = f"{spec.id!r} is experimental"
            self.problems.append(Problem(what=what, fix="allow it with --allow-experimental", where=where))
        return spec

    def lora(self, mode: Mode, lora: Lora | None, spec: ModelSpec | None, *, rl: bool) -> LoraSettings | None:
        """The adapter's settings; None for a full fine-tune."""
        if mode == "full":
            return None
        section = lora or Lora()
        dropout = self.take("lora.dropout", section, "dropout")
        if rl and dropout:
            if "dropout" in section.model_fields_set:
                self.warn(("lora", "dropout"), f"= {dropout} becomes 0: with dropout the first ratio is not 1")
            dropout = 0.0
        targets: str | list[str] | None = section.target_modules
        if targets is None:
            targets = self.note("lora.targets", spec.lora_targets if spec else "all-linear", "registry")
        elif targets == ["all-linear"]:
            # peft knows this word as a text, and would look for a module of that name in a list.
            targets = self.note("lora.targets", "all-linear", "file")
        else:
            self.note("lora.targets", targets, "file")
        return LoraSettings(
            r=self.take("lora.r", section, "r"),
            alpha=self.take("lora.alpha", section, "alpha"),
            dropout=dropout,
            targets=targets,
        )

    def task_url(self, written: str | None, path: Path) -> str:
        """The task app's address, without a closing slash."""
        if self.overrides.task_url is not None:
            url, where = self.note("rollout.task_url", self.overrides.task_url, "flag"), "--task-url"
        else:
            url = self.note("rollout.task_url", written, "file")
            where = self.document.where(path)
        if url is None:
            self.problem(
                path,
                "there is no task app",
                expected='an address such as "http://127.0.0.1:8001"',
                fix="set it here, or pass --task-url",
            )
            return ""
        if not _is_http(url):
            self.problems.append(
                Problem(
                    what=f"{url[:80]!r} is not the address of a task app",
                    expected='an address such as "http://127.0.0.1:8001"',
                    where=where,
                )
            )
        return url.rstrip("/")

    def packing(self, section: BaseModel) -> Literal["packed", "padded"]:
        """How sequences share a forward pass."""
        return "packed" if self.take("packing", section, "packing") else "padded"

    def seed(self, section: BaseModel) -> int:
        """The job's seed: the flag's, else the file's."""
        if self.overrides.seed is not None:
            return self.note("seed", self.overrides.seed, "flag")
        return self.take("seed", section, "seed")


def passed_on(config: PolicyConfig) -> dict[str, Any]:
    """What of `policy_config` the task app gets as it was written: all but the sampling, which is resolved."""
    written = config.model_dump(exclude_none=True)
    return {k: v for k, v in written.items() if k not in (*_SAMPLING, *_THINKING)}


def thinking(config: PolicyConfig) -> bool | None:
    """Whether the model is told to think; None leaves it to the task app."""
    return None if config.thinking_mode is None else config.thinking_mode == "think"


def plain_tags(*tags: Tags) -> dict[str, Any]:
    """The tags of all tables, later ones winning."""
    merged: dict[str, Any] = {}
    for table in tags:
        merged |= table.model_dump()
    return merged


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
