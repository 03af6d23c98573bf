"""A fine-tuning job of OpenAI as a job file of ours, with a comment on each value that was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import tomlkit
from pydantic import BaseModel, ValidationError
from tomlkit.items import Item, Table

from synth.api.fine_tuning.request import (
    DpoHyperparameters,
    FineTuningRequest,
    ReinforcementHyperparameters,
    SupervisedHyperparameters,
)
from synth.api.fine_tuning.translate import translate_request
from synth.cli.openai_account.account import Json, section
from synth.cli.openai_account.bases import Needs, Proposal
from synth.errors import Problem, UserError

_RANK = 16
#: Bytes of a row's JSON for each of its tokens, at least; a row of more tokens would be cut.
_BYTES_A_TOKEN = 2
_SHORTEST, _LONGEST = 2048, 32_768
_HYPERPARAMETERS: dict[str, type[BaseModel]] = {
    "supervised": SupervisedHyperparameters,
    "dpo": DpoHyperparameters,
    "reinforcement": ReinforcementHyperparameters,
}


def method_of(job: Json) -> str:
    """ "supervised", "dpo" or "reinforcement"; a job from before methods is supervised."""
    return str(section(job, "method").get("type") or "supervised")


def job_file(job: Json, *, data: str, validation: str | None, rows: Mapping[str, Needs], base: Proposal) -> str:
    """Write a job as TOML. Raises `UserError` for one that has no counterpart, such as an unknown grader.

    data, validation: the paths of its files. rows: what these files have, by the fields that name them.
    """
    kind = method_of(job)
    settings = section(section(job, "method"), kind)
    written = section(settings, "hyperparameters") or section(job, "hyperparameters")
    hyper, unused = _known(written, kind)
    left_out = [f"{name} = {value!r}: nothing here corresponds to it" for name, value in unused.items()]
    if settings.get("response_format") not in (None, {"type": "text"}):
        left_out.append("response_format: rollouts are sampled freely; have the grader check sample.output_json")
    if job.get("integrations"):
        left_out.append("integrations: `synthctl jobs metrics JOB --out run.csv` has the figures")
    if not base.local:
        hyper["lora_rank"] = _RANK
    method = {"type": kind, kind: {"hyperparameters": hyper}}
    if kind == "reinforcement":
        method[kind]["grader"] = settings.get("grader")
    config = translate_request(
        _request({"model": base.id, "training_file": data, "validation_file": validation, "method": method}, job),
        {field: needs.rows for field, needs in rows.items()},
        judge_provider="openai",
    ).config
    if kind != "reinforcement":
        config["hyperparameters"]["sequence_length"] = _sequence_length(rows["training_file"])
    config["tags"] = {**config.get("tags", {}), "openai_job": job["id"], "openai_model": job.get("model", "")}
    comments = _comments(hyper, config, base, kind)
    automatic = [name for name, value in written.items() if value == "auto"]
    return _text(job, config, comments, automatic=automatic, left_out=left_out)


def _known(written: Json, kind: str) -> tuple[Json, Json]:
    """Split the hyperparameters into those of our request and the others."""
    model = _HYPERPARAMETERS.get(kind)
    if model is None:
        expected = ", ".join(_HYPERPARAMETERS)
        raise UserError(f"the method {kind!r} is not known here", expected=expected, where="method.type")
    fields = model.model_fields.keys() - {"lora_rank"}
    known = {name: value for name, value in written.items() if name in fields and value is not None}
    unused = {name: value for name, value in written.items() if name not in fields and value not in (None, "auto")}
    return known, unused


def _request(body: Json, job: Json) -> FineTuningRequest:
    suffix = job.get("user_provided_suffix")
    try:
        return FineTuningRequest.model_validate(
            {**body, "seed": job.get("seed"), "suffix": suffix[:64] if isinstance(suffix, str) and suffix else None}
        )
    except ValidationError as error:
        problems = [
            Problem(what=f"{e['msg']}: {str(e['input'])[:80]!r}", where=".".join(map(str, e["loc"])))
            for e in error.errors()
        ]
        raise UserError(problems) from error


def _sequence_length(needs: Needs) -> int:
    """Return a power of two that is at least the number of tokens of the longest row, up to `_LONGEST`."""
    tokens, length = needs.longest / _BYTES_A_TOKEN, _SHORTEST
    while length < tokens and length < _LONGEST:
        length *= 2
    return length


def _comments(hyper: Json, config: Json, base: Proposal, kind: str) -> dict[tuple[str, str], str]:
    """Return the comments of the keys, by table and key."""
    rate = config.get("hyperparameters", config.get("training", {})).get("learning_rate")
    factor = hyper.get("learning_rate_multiplier")
    multiplied = f"learning_rate_multiplier {factor} of the default rate here" if rate else ""
    if kind == "reinforcement":
        effort, multiplier = hyper.get("reasoning_effort"), hyper.get("compute_multiplier", 1)
        return {
            ("model", "base"): base.reason,
            ("training", "batch_size"): "rows an iteration: batch_size of the job",
            ("training", "group_size"): f"rollouts of a row: 8 × compute_multiplier {multiplier}",
            ("training", "learning_rate"): multiplied,
            ("training", "num_epochs"): "n_epochs of the job",
            ("evaluation", "every_n_iters"): "eval_interval of the job",
            ("evaluation", "instances"): "eval_samples of the job",
            ("rollout.policy_config", "thinking_budget"): f"reasoning_effort {effort}",
        }
    return {
        ("job", "model"): base.reason,
        ("hyperparameters", "n_epochs"): "of the job",
        ("hyperparameters", "global_batch"): "rows an optimizer step: batch_size of the job",
        ("hyperparameters", "learning_rate"): multiplied,
        ("hyperparameters", "beta"): "of the job",
        ("hyperparameters", "sequence_length"): "tokens a row; a longer row is cut, and counted",
    }


def _text(
    job: Json, config: Json, comments: Mapping[tuple[str, str], str], *, automatic: list[str], left_out: list[str]
) -> str:
    lines = [f"# {job['id']} of OpenAI: {job.get('model', '')}, {job.get('status', 'of unknown state')}."]
    if automatic:
        lines.append(f'# {", ".join(automatic)}: "auto", so these are the defaults here (synthctl config explain).')
    lines += [f"# Left out: {reason}." for reason in left_out]
    document = tomlkit.document()
    for name, value in config.items():
        document[name] = _table(name, value, comments) if isinstance(value, dict) else _item(value)
    return "\n".join(lines) + "\n\n" + tomlkit.dumps(document)


def _table(path: str, values: Json, comments: Mapping[tuple[str, str], str]) -> Table:
    table = tomlkit.table()
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, dict):
            table[name] = _table(f"{path}.{name}", cast(Json, value), comments)
            continue
        table[name] = _item(value)
        if comment := comments.get((path, name)):
            cast(Item, table[name]).comment(comment)
    return table


def _item(value: Any) -> Item:
    """Return a value of TOML, which has no null."""
    return tomlkit.item(_without_null(value))


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_null(v) for k, v in cast(Json, value).items() if v is not None}
    if isinstance(value, list):
        return [_without_null(v) for v in cast(list[Any], value) if v is not None]
    return value
