"""Look models up: in the Qwen3 table, the directories of the models folder, and the list of stand-ins."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from synth.chat.families import always_thinks, family_of
from synth.chat.template_source import DEFAULT
from synth.errors import Problem, UserError
from synth.models.aliases import ALIASES_FILE, read_aliases, write_aliases
from synth.models.architectures import family_of_config, fault_of_config, has_experts
from synth.models.finetuned import PREFIXES, parse_finetuned
from synth.models.folder import check_folder, context_of, read_model_config
from synth.models.table import LORA_TARGETS, QWEN3, ModelSpec, Vision, canonical
from synth.models.template_source import read_templates

_KNOWN_S = 1.0

#: The state for which a look-up can be answered from memory: the models folder and its list of stand-ins.
_State = tuple[int, ...]
_LOCAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Registry:
    """The models that jobs and requests may name: the Qwen3 table and the directories of `models_dir`.

    hub: whether the weights of a table's id that is not in `models_dir` may be downloaded from the model hub.
    """

    def __init__(self, models_dir: Path | None = None, *, hub: bool = False) -> None:
        self.models_dir = None if models_dir is None else models_dir.absolute()
        self.hub = hub
        self._known: dict[str, ModelSpec] = {}
        self._known_since = 0.0
        self._known_state: _State = ()

    def find(self, model_id: str, *, where: str = "") -> ModelSpec:
        """Return the spec of a base or fine-tuned id; base ids match in any case.

        where: the place that named the model, for the error. Raises UserError with the nearest known id.
        Results are cached for a second, because every chat call looks its model up. The cache is dropped at once when a
        stand-in or a directory of the models folder is added or removed, by any process.
        """
        state = self._state()
        if time.monotonic() - self._known_since > _KNOWN_S or state != self._known_state:
            self._known, self._known_since, self._known_state = {}, time.monotonic(), state
        if model_id not in self._known:
            self._known[model_id] = self._find(model_id, where=where)
        return self._known[model_id]

    def weights(self, spec: ModelSpec) -> str:
        """Return the source of a base's weights: its directory, else its id on the hub.

        Raises UserError if there is no source, or if the folder holds another model's weights.
        """
        if spec.path is not None:
            check_folder(spec, Path(spec.path))
        if spec.path is None and not self.hub:
            raise UserError(self._no_weights(spec))
        return spec.path or spec.base

    def bases(self) -> list[ModelSpec]:
        """Return every base id, ids with weights on this machine first.

        A directory that holds no supported model is left out: `find` reports its error when a job or a request names
        it.
        """
        local = self._directories()
        specs: list[ModelSpec] = []
        for model_id in (*local, *(i for i in QWEN3 if i not in local)):
            with contextlib.suppress(UserError):
                specs.append(self._base(model_id, local, where=str(self.models_dir)))
        return sorted(specs, key=lambda spec: spec.path is None)

    def runnable(self) -> list[ModelSpec]:
        """Return the bases whose weights are on this machine."""
        return [spec for spec in self.bases() if spec.path is not None]

    def stand_ins(self) -> dict[str, str]:
        """Return base id → id of the local model that stands in for it."""
        return {} if self.models_dir is None else read_aliases(self.models_dir)

    def alias(self, model_id: str, stand_in: str) -> ModelSpec:
        """Let a local model run under the id of a base whose weights are not here.

        Raises UserError when the base is unknown or here, or the stand-in is missing or of another family.
        """
        local = self._directories()
        base = self._hosted(model_id)
        if base.id in local:
            raise UserError(
                f"{base.id!r} has its own weights here",
                expected="an id without weights on this cluster",
                fix=f"remove {local[base.id]} to let another model stand in",
                where=base.id,
            )
        target = next((name for name in local if name.lower() == stand_in.lower()), None)
        if target is None or self.models_dir is None:
            raise UserError(self._no_such_stand_in(stand_in, base, local))
        spec = self._base(target, local, where=target)
        if spec.family != base.family:
            raise UserError(
                f"{target!r} is of the family {spec.family}, {base.id!r} of {base.family}",
                expected=f"a model of the family {base.family}",
                fix="choose a stand-in that has the abilities that the id promises",
                where=target,
            )
        write_aliases(self.models_dir, read_aliases(self.models_dir) | {base.id: target})
        return self.find(base.id)

    def unalias(self, model_id: str) -> str:
        """Remove the stand-in of a base, and return its id. Raises UserError when there is none."""
        aliases = self.stand_ins()
        id = canonical(model_id) or model_id
        if id not in aliases or self.models_dir is None:
            raise UserError(
                f"nothing stands in for {_short(id)}",
                expected=f"one of {', '.join(aliases)}" if aliases else "",
                fix="`synthctl models aliases` shows them",
            )
        stand_in = aliases.pop(id)
        write_aliases(self.models_dir, aliases)
        return stand_in

    def _state(self) -> _State:
        if self.models_dir is None:
            return ()
        state: list[int] = []
        for path in (self.models_dir, self.models_dir / ALIASES_FILE):
            try:
                stat = path.stat()
            except OSError:
                # An unreadable list is reported by the look-up itself.
                continue
            # A replaced file can have the time of the one before: the inode differs.
            state += [stat.st_ino, stat.st_mtime_ns]
        return tuple(state)

    def _find(self, model_id: str, *, where: str) -> ModelSpec:
        local = self._directories()
        finetuned = parse_finetuned(model_id)
        if finetuned is not None:
            base = self._base(finetuned.base, local, where=where)
            return msgspec.structs.replace(
                base,
                id=str(replace(finetuned, base=base.base)),
                prefix=finetuned.prefix,
                job_id=finetuned.job_id,
                checkpoint=finetuned.checkpoint,
            )
        if ":" in model_id:
            raise UserError(
                f"{_short(model_id)} is not a fine-tuned model id",
                expected=f"<prefix>:<base>:<job_id>[:<checkpoint>] with a prefix of {', '.join(PREFIXES)}",
                fix="copy the id that `synthctl models ls` shows",
                where=where or "model",
            )
        return self._base(model_id, local, where=where)

    def _base(self, model_id: str, local: dict[str, Path], *, where: str) -> ModelSpec:
        by_lower = {i.lower(): i for i in (*QWEN3, *local)}
        id = by_lower.get(model_id.lower())
        if id is None:
            raise UserError(_unknown(model_id, by_lower, where))
        if id not in QWEN3:
            return _local_spec(id, local[id])
        if id in local:
            return msgspec.structs.replace(QWEN3[id], path=str(local[id]), context=_context(local[id]))
        stand_in = self.stand_ins().get(id)
        # A stand-in whose directory was removed does not count: `weights` reports it as missing.
        path = local.get(stand_in) if stand_in is not None else None
        if path is None:
            return QWEN3[id]
        return msgspec.structs.replace(QWEN3[id], path=str(path), stand_in=stand_in, context=_context(path))

    def _hosted(self, model_id: str) -> ModelSpec:
        id = canonical(model_id)
        if id is None:
            near = difflib.get_close_matches(model_id, QWEN3, n=1)
            raise UserError(
                f"{_short(model_id)} is not the id of a hosted base",
                expected="a Qwen3 id such as Qwen/Qwen3-0.6B",
                fix=f"did you mean {near[0]!r}?" if near else "`synthctl models known` shows them",
                where="ID",
            )
        return QWEN3[id]

    def _no_weights(self, spec: ModelSpec) -> Problem:
        like = next((s.id for s in self.runnable() if s.family == spec.family and s.stand_in is None), None)
        stand_in = self.stand_ins().get(spec.base)
        alias = f", or let a local model stand in: `synthctl models alias {spec.base} {like}`" if like else ""
        return Problem(
            what=f"{spec.base!r} has no weights on this cluster"
            + (f", and its stand-in {stand_in!r} is gone" if stand_in else ""),
            expected=f"its files in the models folder, as {spec.base}/config.json",
            fix=f"fetch them: `synthctl models pull {spec.base}`{alias}",
            where="model",
        )

    def _no_such_stand_in(self, stand_in: str, base: ModelSpec, local: dict[str, Path]) -> Problem:
        near = difflib.get_close_matches(stand_in, local, n=1) or [n for n in local if n not in QWEN3][:1]
        return Problem(
            what=f"there is no model {_short(stand_in)} in {self.models_dir}",
            expected=f"a local model of the family {base.family}",
            fix=f"did you mean {near[0]!r}?" if near else "make one: synthctl models make tiny-qwen3",
            where="STAND_IN",
        )

    def _directories(self) -> dict[str, Path]:
        """Return model id -> directory, one or two levels below `models_dir`. Each call reads them again."""
        if self.models_dir is None or not self.models_dir.is_dir():
            return {}
        directories: dict[str, Path] = {}
        for child in sorted(self.models_dir.iterdir()):
            if not child.is_dir() or not _LOCAL_NAME.fullmatch(child.name):
                continue
            if (child / "config.json").is_file():
                directories[child.name] = child
                continue
            for grandchild in sorted(child.iterdir()):
                if _LOCAL_NAME.fullmatch(grandchild.name) and (grandchild / "config.json").is_file():
                    directories[f"{child.name}/{grandchild.name}"] = grandchild
        return directories


def _context(path: Path) -> int | None:
    """Return the context of a model's folder; None if its config.json cannot be read, which `weights` reports."""
    try:
        return context_of(read_model_config(path.name, path))
    except (OSError, UserError):
        return None


def _unknown(model_id: str, by_lower: dict[str, str], where: str) -> Problem:
    near = difflib.get_close_matches(model_id.lower(), by_lower, n=1, cutoff=0.6)
    return Problem(
        what=f"unknown model {_short(model_id)}",
        expected="a Qwen3 id, a directory of the models folder, or a fine-tuned id",
        fix=f"did you mean {by_lower[near[0]]!r}?" if near else "`synthctl models ls` shows them",
        where=where or "model",
    )


def _local_spec(model_id: str, path: Path) -> ModelSpec:
    config = read_model_config(model_id, path)
    if (fault := fault_of_config(model_id, config, str(path / "config.json"))) is not None:
        raise UserError(fault)
    family = family_of_config(config)
    assert family is not None
    template = read_templates(path).get(DEFAULT, "")
    return ModelSpec(
        id=model_id,
        base=model_id,
        family=family,
        rl=True,
        sft=True,
        thinking=always_thinks(template),
        can_think=family_of(template).thinks,
        vision=Vision(processor_id=model_id) if family == "qwen3-vl" else None,
        path=str(path),
        lora_targets=LORA_TARGETS.get(family, "all-linear"),
        experts=has_experts(config),
        context=context_of(config),
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
