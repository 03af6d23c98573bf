"""What resolving any kind of job needs: the flags, the record of origins, and the rules that kinds share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from synth.base_url import base_url_fault
from synth.errors import Problem, UserError
from synth.events.catalogue import MAX_EVENT_BODY_BYTES
from synth.jobs.parse.toml import Document, Path
from synth.jobs.parse.validate import ParsedJob
from synth.jobs.resolved import LoraSettings, Mode
from synth.jobs.schema.sections import (
    AlgorithmSection,
    LoraSection,
    PolicyConfigSection,
    TagsSection,
    default_of,
    keys_of,
)
from synth.jobs.seeds import Seeds
from synth.models import ModelSpec, Registry

_T = TypeVar("_T")
#: Keys of `policy_config` that the job decides, and tells the task app in its own words.
_RESOLVED = (
    *("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens"),
    *("thinking_mode", "thinking_budget", "max_llm_calls", "max_turns"),
    *("model", "provider", "inference_url"),
)
_LORA_IN_HYPERPARAMETERS = {
    "r": "lora_rank",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
}


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
class ResolveContext:
    """One resolve in progress: collects problems, warnings and origins.

    origins: of each field of the job, by its dotted name: the place in the file, the flag, "registry" or "default".
    changed: fields that are not what was asked for, or that nobody asked for, and why. keys: of fields that one key of
    the file sets, that key with its table. python_graders: whether graders of type `python` are run.
    """

    document: Document
    overrides: Overrides
    registry: Registry
    warnings: list[str]
    problems: list[Problem] = field(default_factory=list[Problem])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    changed: dict[str, str] = field(default_factory=dict[str, str])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    dropped: list[Path] = field(default_factory=list[Path])
    python_graders: bool = True
    _places: dict[int, Path] = field(default_factory=dict[int, Path])

    @classmethod
    def of(
        cls, parsed: ParsedJob, overrides: Overrides, registry: Registry, *, python_graders: bool = True
    ) -> ResolveContext:
        """The start of resolving a parsed job."""
        return cls(
            parsed.document,
            overrides,
            registry,
            warnings=list(parsed.warnings),
            dropped=parsed.dropped,
            python_graders=python_graders,
            _places=_places_of(parsed.config, ()),
        )

    def at(self, section: BaseModel, key: str) -> Path:
        """Where a key of one of the file's tables stands."""
        return (*self.place(section), key)

    def place(self, section: BaseModel) -> Path:
        """Where one of the file's tables stands; the top for one that the file does not have."""
        return self._places.get(id(section), ())

    def _dotted(self, section: BaseModel | None, name: str, *, field: str) -> str:
        """A key with its table, as `training.grad_clip`; with the table of the job's field where the file lacks it."""
        place = self.place(section) if section is not None else ()
        return ".".join(map(str, (*(place or field.split(".")[:-1]), name)))

    def problem(self, path: Path, what: str, *, expected: str = "", fix: str = "") -> None:
        """Report what is wrong at a place, unless that is because of a value that was reported already."""
        if any(path[: len(d)] == d or d[: len(path)] == path for d in self.dropped):
            return
        self.problems.append(Problem(what=what, expected=expected, fix=fix, where=self.document.where(path)))

    def warn(self, path: Path, sentence: str) -> None:
        self.warnings.append(f"{self.document.where(path)} {sentence}")

    def first_seeds(self, seeds: Seeds, count: int | None, path: Path) -> list[int] | None:
        """The first `count` seeds (None: all), which the job lists one by one; None where an event cannot hold them."""
        wanted = len(seeds) if count is None else min(count, len(seeds))
        largest = max(seeds.listed, default=seeds.start + wanted)
        size, room = wanted * (len(str(largest)) + 1), MAX_EVENT_BODY_BYTES * 3 // 4
        if size > room:
            what = f"{wanted:,} seeds to evaluate on take {size:,} bytes of the job's event"
            self.problem(path, what, expected=f"at most {room:,} bytes", fix="evaluate on fewer")
            return None
        return seeds.first(wanted)

    def record(self, key: str, value: _T, origin: str) -> _T:
        """Record where a value of the job came from, and pass it through."""
        self.origins[key] = origin
        return value

    def record_change(self, key: str, value: _T, why: str) -> _T:
        """Record why a field is not what was written, or that nobody wrote it, and pass the value through."""
        self.changed[key] = why
        return value

    def take(self, key: str, section: BaseModel, name: str, default: Any = None) -> Any:
        """A section's field; `default` where it follows from other keys. The origin follows from what was written."""
        value = value_of(section, name)
        origin = self.document.where(self.at(section, name)) if is_written(section, name) else "default"
        self.keys[key] = self._dotted(section, name, field=key)
        return self.record(key, default if value is None else value, origin)

    def first(self, key: str, named: Sequence[tuple[BaseModel | None, str]], default: Any = None) -> Any:
        """The first of several keys that say the same thing; a later one that says something else is warned about.

        default: where it follows from other keys; else it is that of the first key whose table there is.
        """
        given = [(s, n, getattr(s, n)) for s, n in named if s is not None and is_written(s, n)]
        if given or named:
            setter, setter_name, *_ = [*given, *named][0]
            self.keys[key] = self._dotted(setter, setter_name, field=key)
        if not given:
            if default is None:
                default = next((default_of(type(s), n) for s, n in named if s is not None), None)
            return self.record(key, default, "default")
        section, name, value = given[0]
        place = self.document.where(self.at(section, name))
        for other, other_name, other_value in given[1:]:
            if other_value != value:
                decides = self.document.label(self.at(section, name))
                self.warn(self.at(other, other_name), f"has no effect: {decides} decides")
        return self.record(key, value, place)

    def find_model(self, model_id: str | None, path: Path, *, use: Literal["rl", "sft", "eval"]) -> ModelSpec | None:
        """Look the model up and check that this kind of job may use it; None when there is a problem."""
        if self.overrides.model is not None:
            model_id, where = self.record("model", self.overrides.model, "--model"), "--model"
        else:
            where = self.document.where(path)
            self.record("model", model_id, where)
        if model_id is None:
            return None
        try:
            spec = self.registry.find(model_id, where=where)
        except UserError as error:
            self.problems += error.problems
            return None
        self.record("base_model", spec.base, "registry")
        if spec.stand_in is not None:
            what = f"{spec.stand_in!r} stands in for {spec.base!r}, whose own weights are not on this cluster"
            self.warnings.append(f"{where} {what}")
        allowed = {"rl": spec.rl, "sft": spec.sft, "eval": True}[use]
        if not allowed:
            what = f"{spec.id!r} cannot be trained with {use.upper()}"
            self.problems.append(Problem(what=what, fix="`synthctl models known` shows which can", where=where))
        if spec.experimental and not self.overrides.allow_experimental:
            what = f"{spec.id!r} is experimental"
            self.problems.append(Problem(what=what, fix="allow it with --allow-experimental", where=where))
        return spec

    def qlora_mode(self, place: str) -> Mode:
        """The mode of an adapter over a base in 4 bits, and which base is served then. place: what asks for it."""
        self.warnings.append(
            f"{place}: the linear layers of the base are rounded to 4 bits (NF4); this rounded base, which is what is "
            "trained on, is also what is served, in rollouts and with the finished adapter"
        )
        return self.record("mode", "qlora", place)

    def lora_settings(
        self,
        mode: Mode,
        named: Sequence[BaseModel | None],
        spec: ModelSpec | None,
        *,
        rl: bool,
        dpo: bool = False,
    ) -> LoraSettings | None:
        """The adapter's settings; None for a full fine-tune. named: the tables that may say, the first wins."""
        if mode == "full":
            return self.record("lora", None, self.origins["mode"])

        def setting(key: str, default: Any) -> Any:
            keys = [(t, key if isinstance(t, LoraSection) else _LORA_IN_HYPERPARAMETERS[key]) for t in named]
            return self.first(f"lora.{key}", keys, default)

        dropout = setting("dropout", 0.0 if rl or dpo else LoraSection().dropout)
        if (rl or dpo) and dropout:
            why = "with dropout the first ratio is not 1" if rl else "with dropout the policy is not its own reference"
            self.warnings.append(f"{self.origins['lora.dropout']} = {dropout} becomes 0: {why}")
            dropout = self.record_change("lora.dropout", 0.0, f"{dropout} becomes 0: {why}")
        targets: str | list[str] | None = setting("target_modules", None)
        origin = self.origins.pop("lora.target_modules")
        if targets is None:
            targets, origin = spec.lora_targets if spec else "all-linear", "registry"
        elif targets == ["all-linear"]:
            # peft knows this word as a text, and would look for a module of that name in a list.
            targets = "all-linear"
        if spec is not None and spec.experts:
            self.warnings.append(
                f"{origin} the adapter reaches the attention of {spec.id} and not its experts, whose weights are one "
                "tensor a layer: they stay as they are"
            )
        return LoraSettings(
            r=setting("r", LoraSection().r),
            alpha=setting("alpha", LoraSection().alpha),
            dropout=dropout,
            targets=self.record("lora.targets", targets, origin),
        )

    def task_url(self, written: str | None, path: Path) -> str:
        """The task app's address, without a closing slash."""
        if self.overrides.task_url is not None:
            url, where = self.record("rollout.task_url", self.overrides.task_url, "--task-url"), "--task-url"
        else:
            where = self.document.where(path)
            url = self.record("rollout.task_url", written, where)
        if url is None:
            self.problem(
                path,
                "there is no task app",
                expected='an address such as "http://127.0.0.1:8001"',
                fix="set it here, or pass --task-url or --app",
            )
            return ""
        if fault := base_url_fault(url):
            self.problems.append(
                Problem(
                    what=f"{url[:80]!r} is not the address of a task app: it {fault}",
                    expected='an address such as "http://127.0.0.1:8001"',
                    where=where,
                )
            )
        return url.rstrip("/")

    def check_algorithm(
        self, written: AlgorithmSection | None, *, type: str, methods: Sequence[str], varieties: Sequence[str]
    ) -> None:
        """Check that `[algorithm]` asks for what this kind of job does."""
        if written is None:
            return
        for key, value, allowed in (
            ("type", written.type, (type,)),
            ("method", written.method, methods),
            ("variety", written.variety, varieties),
        ):
            if value not in allowed:
                expected = " or ".join(repr(a) for a in allowed)
                self.problem(("algorithm", key), f"{key} = {value!r} is another kind of job's", expected=expected)

    def packing(self, section: BaseModel) -> Literal["packed", "padded"]:
        """How sequences share a forward pass."""
        return "packed" if self.take("packing", section, "packing") else "padded"

    def seed(self, section: BaseModel) -> int:
        """The job's seed: the flag's, else the file's."""
        if self.overrides.seed is not None:
            return self.record("seed", self.overrides.seed, "--seed")
        return self.take("seed", section, "seed")

    def tags(self, *tags: TagsSection) -> dict[str, Any]:
        """The tags of all tables, later ones winning."""
        merged: dict[str, Any] = {}
        origin = "default"
        for table in tags:
            if table.model_fields_set:
                origin = self.document.where(self._places[id(table)])
            merged |= table.model_dump()
        return self.record("tags", merged, origin)


def is_written(section: BaseModel, name: str) -> bool:
    """Whether the file gives this key a value; a null of a JSON payload is none."""
    return name in section.model_fields_set and getattr(section, name) is not None


def value_of(section: BaseModel, name: str) -> Any:
    """A key's value, or where the file gives it none the field's default."""
    value = getattr(section, name)
    return default_of(type(section), name) if value is None else value


def passthrough(config: PolicyConfigSection) -> dict[str, Any]:
    """What of `policy_config` the task app gets as it was written: all but what the job resolves itself."""
    written = config.model_dump(exclude_none=True)
    return {k: v for k, v in written.items() if k not in _RESOLVED}


def _places_of(section: BaseModel, path: Path) -> dict[int, Path]:
    places: dict[int, Path] = {id(section): path}
    for key, info in keys_of(type(section)).items():
        name = next(n for n, i in type(section).model_fields.items() if i is info)
        value = getattr(section, name)
        if isinstance(value, BaseModel) and name in section.model_fields_set:
            places |= _places_of(value, (*path, key))
    return places
