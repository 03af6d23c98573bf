"""The shared parts of resolving any kind of job: the flags, the record of origins, and common rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel

from synth.base_url import base_url_fault
from synth.errors import Problem, UserError
from synth.events.catalogue import MAX_EVENT_BODY_BYTES
from synth.jobs.parse.toml import Document, Path
from synth.jobs.parse.validate import ParsedJob
from synth.jobs.schema.sections import (
    AlgorithmSection,
    LoraSection,
    PolicyConfigSection,
    TagsSection,
    copied_fields,
    default_of,
    keys_of,
)
from synth.methods.base import LoraSettings, Mode
from synth.methods.seeds import Seeds
from synth.models import ModelSpec, Registry

_T = TypeVar("_T")
_SectionT = TypeVar("_SectionT", bound=BaseModel)
_StructT = TypeVar("_StructT", bound=msgspec.Struct)
#: Keys of `policy_config` that the job resolves itself, and sends to the task app in its own fields.
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
    """The values of flags, or of a request's other fields, that replace the file's. None: as in the file."""

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
    changed: fields whose value is not the one in the file, or that the file does not set, and why. keys: of fields that
    one key of the file sets, that key with its table. defaults: of fields that a key could set and the file does not,
    that key and its value. replaced: keys whose value a flag replaces; None: another key has the value.
    python_graders: whether graders of type `python` are run.
    """

    document: Document
    overrides: Overrides
    registry: Registry
    warnings: list[str]
    problems: list[Problem] = field(default_factory=list[Problem])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    changed: dict[str, str] = field(default_factory=dict[str, str])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    defaults: dict[str, tuple[Path, Any]] = field(default_factory=dict[str, "tuple[Path, Any]"])
    replaced: dict[Path, Any] = field(default_factory=dict[Path, Any])
    dropped: list[Path] = field(default_factory=list[Path])
    python_graders: bool = True
    _places: dict[int, Path] = field(default_factory=dict[int, Path])
    _absent: list[BaseModel] = field(default_factory=list[BaseModel])

    @classmethod
    def of(
        cls, parsed: ParsedJob, overrides: Overrides, registry: Registry, *, python_graders: bool = True
    ) -> ResolveContext:
        """Begin to resolve a parsed job."""
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
        """Return the place of a key of one of the file's tables."""
        return (*self.place(section), type(section).model_fields[key].alias or key)

    def place(self, section: BaseModel) -> Path:
        """Return the place of one of the file's tables; the top for a table that the file does not have."""
        return self._places.get(id(section), ())

    def table(self, section: _SectionT | None, kind: type[_SectionT], path: Path) -> _SectionT:
        """Return one of the file's tables; its defaults, at its place, if the file does not have it."""
        if section is None:
            section = kind()
            self._absent.append(section)
            self._places[id(section)] = path
        return section

    def leave_out(self, *keys: str) -> None:
        """Leave the defaults of fields out of a complete file, because another key decides them."""
        for key in keys:
            self.defaults.pop(key, None)

    def replace(self, paths: Sequence[Path], value: Any) -> None:
        """Record that a flag's value replaces some keys; the first of them has it in `jobs config`."""
        self.replaced |= {**dict.fromkeys(paths), paths[0]: value}

    def _dotted(self, section: BaseModel | None, name: str, *, field: str) -> str:
        """Return a key with its table, as `training.grad_clip`; without a table, with the field's own."""
        place = self.place(section) if section is not None else ()
        key = name if section is None else type(section).model_fields[name].alias or name
        return ".".join(map(str, (*(place or field.split(".")[:-1]), key)))

    def problem(self, path: Path, what: str, *, expected: str = "", fix: str = "") -> None:
        """Report an error at a place, unless a value that was already reported causes it."""
        if any(path[: len(d)] == d or d[: len(path)] == path for d in self.dropped):
            return
        self.problems.append(Problem(what=what, expected=expected, fix=fix, where=self.document.where(path)))

    def warn(self, path: Path, sentence: str) -> None:
        self.warnings.append(f"{self.document.where(path)} {sentence}")

    def first_seeds(self, seeds: Seeds, count: int | None, path: Path) -> list[int] | None:
        """Return the first `count` seeds (None: all) as a list; None if the job's event cannot hold them."""
        number = len(seeds) if count is None else min(count, len(seeds))
        largest = max(seeds.listed, default=seeds.start + number)
        size, room = number * (len(str(largest)) + 1), MAX_EVENT_BODY_BYTES * 3 // 4
        if size > room:
            what = f"{number:,} seeds to evaluate on take {size:,} bytes of the job's event"
            self.problem(path, what, expected=f"at most {room:,} bytes", fix="evaluate on fewer")
            return None
        return seeds.first(number)

    def record(self, key: str, value: _T, origin: str) -> _T:
        """Record the origin of a value of the job, and return the value."""
        self.origins[key] = origin
        self.defaults.pop(key, None)
        return value

    def record_change(self, key: str, value: _T, why: str) -> _T:
        """Record why a field differs from the file, or why it is set without the file, and return the value."""
        self.defaults.pop(key, None)
        self.changed[key] = why
        return value

    def take(self, key: str, section: BaseModel, name: str, default: Any = None) -> Any:
        """Return a section's field, or `default` if it is not set. Its origin is the file only if the file sets it."""
        value = getattr(section, name)
        value = default if value is None else value
        self.keys[key] = self._dotted(section, name, field=key)
        if is_written(section, name):
            return self.record(key, value, self.document.where(self.at(section, name)))
        return self._record_default(key, section, name, value)

    def _record_default(self, key: str, section: BaseModel | None, name: str, value: _T) -> _T:
        self.record(key, value, "default")
        if section is not None and id(section) in self._places and not isinstance(value, BaseModel):
            self.defaults[key] = (self.at(section, name), value)
        return value

    def build(self, kind: type[_StructT], section: BaseModel, prefix: str = "", **own: Any) -> _StructT:
        """Make settings of a job of the given fields, and of every other one whose key stands in a section.

        prefix: of the settings within the job, such as `rollout.`.
        """
        return kind(**own, **self.copied(kind, section, prefix, leaving=own))

    def copied(
        self, kind: type[msgspec.Struct], section: BaseModel, prefix: str, *, leaving: Collection[str]
    ) -> dict[str, Any]:
        """Return the fields of settings whose key stands in a section, without some fields."""
        names = [name for name in copied_fields(kind, type(section)) if name not in leaving]
        return {name: self.take(prefix + name, section, name) for name in names}

    def first(self, key: str, named: Sequence[tuple[BaseModel | None, str]], default: Any = None) -> Any:
        """Return the first value that is set among keys with one meaning; warn of later ones that differ.

        default: the value if none is set; None is the default of the first key whose table the file has.
        """
        set_keys = [(s, n, getattr(s, n)) for s, n in named if s is not None and is_written(s, n)]
        if set_keys or named:
            setter, setter_name, *_ = [*set_keys, *named][0]
            self.keys[key] = self._dotted(setter, setter_name, field=key)
        if not set_keys:
            present, name = next(((s, n) for s, n in named if s is not None), (None, ""))
            if default is None and present is not None:
                default = default_of(type(present), name)
            return self._record_default(key, present, name, default)
        section, name, value = set_keys[0]
        place = self.document.where(self.at(section, name))
        for other, other_name, other_value in set_keys[1:]:
            if other_value != value:
                decides = self.document.label(self.at(section, name))
                self.warn(self.at(other, other_name), f"has no effect: {decides} decides")
        return self.record(key, value, place)

    def find_model(self, model_id: str | None, path: Path, *, use: Literal["rl", "sft", "eval"]) -> ModelSpec | None:
        """Look the model up and check that this kind of job may use it; None when there is a problem.

        path: of the key that names it.
        """
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
        """Return the mode of an adapter over a base in 4 bits, and warn which base is served. place: of its key."""
        self.warnings.append(
            f"{place}: the linear layers of the base are rounded to 4 bits (NF4); this rounded base is trained on, and "
            "is also served, in rollouts and with the finished adapter"
        )
        return self.record("mode", "qlora", place)

    def lora_settings(
        self,
        mode: Mode,
        named: Sequence[BaseModel | None],
        spec: ModelSpec | None,
        *,
        without_dropout: str = "",
    ) -> LoraSettings | None:
        """Return the adapter's settings; None for a full fine-tune. named: the tables for it; the first wins.

        without_dropout: why it has no dropout; "" if it may have.
        """
        if mode == "full":
            return self.record("lora", None, self.origins["mode"])

        def setting(key: str, default: Any) -> Any:
            keys = [(t, key if isinstance(t, LoraSection) else _LORA_IN_HYPERPARAMETERS[key]) for t in named]
            return self.first(f"lora.{key}", keys, default)

        dropout = setting("dropout", 0.0 if without_dropout else LoraSection().dropout)
        if without_dropout and dropout:
            self.warnings.append(f"{self.origins['lora.dropout']} = {dropout} becomes 0: {without_dropout}")
            dropout = self.record_change("lora.dropout", 0.0, f"{dropout} becomes 0: {without_dropout}")
        listed: Sequence[str] | None = setting("target_modules", None)
        origin = self.origins.pop("lora.target_modules")
        if listed is None:
            targets, origin = spec.lora_targets if spec else "all-linear", "registry"
        else:
            # peft accepts this word as a text; in a list it would search for a module of that name.
            targets = "all-linear" if list(listed) == ["all-linear"] else list(listed)
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
        """Return the task app's address, without a closing slash."""
        if self.overrides.task_url is not None:
            self.replace([path], self.overrides.task_url)
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
        """Check that `[algorithm]` describes this kind of job."""
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
        """Return how sequences share a forward pass."""
        return "packed" if self.take("packing", section, "packing") else "padded"

    def seed(self, section: BaseModel) -> int:
        """Return the job's seed: the flag's, else the file's."""
        if self.overrides.seed is not None:
            self.replace([self.at(section, "seed")], self.overrides.seed)
            return self.record("seed", self.overrides.seed, "--seed")
        return self.take("seed", section, "seed")

    def tags(self, *tags: TagsSection) -> dict[str, Any]:
        """Return the tags of all tables, later ones winning."""
        merged: dict[str, Any] = {}
        origin = "default"
        for table in tags:
            if table.model_fields_set:
                origin = self.document.where(self._places[id(table)])
            merged |= table.model_dump()
        return self.record("tags", merged, origin)


def is_written(section: BaseModel, name: str) -> bool:
    """Return whether the file gives this key a value."""
    return name in section.model_fields_set


def passthrough(config: PolicyConfigSection) -> dict[str, Any]:
    """Return the part of `policy_config` that the task app gets unchanged: all keys that the job does not resolve."""
    written = config.model_dump(exclude_none=True)
    return {k: v for k, v in written.items() if k not in _RESOLVED}


def _places_of(section: BaseModel, path: Path) -> dict[int, Path]:
    places: dict[int, Path] = {id(section): path}
    for key, info in keys_of(type(section)).items():
        name = next(n for n, i in type(section).model_fields.items() if i is info)
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            # A default may be of several tables, of which the first has it.
            places = _places_of(value, (*path, key)) | places
    return places
