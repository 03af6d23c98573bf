"""The conversion of the published clients' bodies to jobs in our own schema, which the validator reads like any other.

Only the shape of a request is checked here. The validator checks the content of the configuration, so that every client
gets the same response to an invalid one. A client checks its `--allow-experimental` before it sends a request and does
not pass it on, so an experimental model is allowed here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import msgspec

from synth.api.limits import MAX_CONFIG_BYTES
from synth.errors import UserError
from synth.events import JobCreated
from synth.jobs.parse.toml import read_toml

Table = dict[str, Any]

#: Names of hyperparameters that scripts use, in addition to our own.
_HYPERPARAMETERS = {
    "epochs": "n_epochs",
    "num_epochs": "n_epochs",
    "num_train_epochs": "n_epochs",
    "steps": "total_steps",
    "train_steps": "total_steps",
    "max_steps": "total_steps",
    "max_seq_length": "sequence_length",
    "max_grad_norm": "grad_clip",
    "lr": "learning_rate",
    "lr_scheduler_type": "lr_scheduler",
}
_LORA = {
    "lora_rank": "r",
    "lora_r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "lora_target_modules": "target_modules",
    "target_modules": "target_modules",
}
_VALIDATION = (
    "evaluation_strategy",
    "eval_steps",
    "save_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
)
_SFT_TYPES = ("sft_offline", "sft", "fft", "qft", "dpo")
#: The tables that an older client sends in addition to the configuration, which has the same tables.
_COPIES = ("training", "evaluation", "rollout", "topology", "vllm")


class JobRequest(NamedTuple):
    """A job to create. environment_key: the task app's key in the request, which must not be in an event."""

    created: JobCreated
    environment_key: str | None = None


def read_body(body: bytes) -> Table:
    """Decode the JSON object of a request. Raises UserError."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_field(f"the body is no job: {error}", "", expected="a JSON object") from error


def read_rl_job(body: bytes) -> JobRequest:
    """Decode and parse a body of `POST /rl/jobs`. Raises UserError."""
    return parse_rl_job(read_body(body))


def read_sft_job(body: bytes) -> JobRequest:
    """Decode and parse a body of `POST /learning/jobs`, `/sft/jobs`. Raises UserError."""
    return parse_sft_job(read_body(body))


def parse_rl_job(body: Table) -> JobRequest:
    """Parse `POST /rl/jobs`: `data` with the whole TOML as `config`, or the same keys without `data` around them."""
    data = _table(body, "data") if "data" in body else body
    place = "data." if "data" in body else ""
    kind = _text(body, "job_type") or "rl"
    if kind != "rl":
        raise _bad_field(f"job_type is {kind[:40]!r}", "job_type", expected='"rl"')
    config = _rl_config(data, place)
    for name, table in (("compute", body.get("compute")), *((name, data.get(name)) for name in _COPIES)):
        if isinstance(table, dict):
            config.setdefault(name, table)
    trainer = _table(data, "trainer", place)
    if trainer:
        training = config.setdefault("training", Table())
        if isinstance(training, dict):
            config["training"] = trainer | cast(Table, training)
    return JobRequest(
        _create(
            "rl",
            config,
            model=_text(data, "model", place) or _text(data, "base_model", place),
            task_url=_text(data, "endpoint_base_url", place),
            metadata=_table(data, "metadata", place) if place else Table(),
            body=body,
            kept=("tags", "trainer_id", "job_config_id"),
        ),
        _text(data, "environment_api_key", place),
    )


def parse_sft_job(body: Table) -> JobRequest:
    """Parse `POST /learning/jobs`, `/sft/jobs`: a model, a file, hyperparameters, and tables of the client's TOML."""
    kind = _text(body, "training_type") or "sft_offline"
    if kind not in _SFT_TYPES:
        raise _bad_field(
            f"training_type is {kind[:40]!r}",
            "training_type",
            expected=f"one of {', '.join(_SFT_TYPES)}",
            fix="RL jobs go to POST /api/rl/jobs" if kind.startswith("rl") else "",
        )
    effective = _table(_table(body, "metadata"), "effective_config", "metadata.")
    training = dict(_table(effective, "training", "metadata.effective_config."))
    data = dict(_table(effective, "data", "metadata.effective_config."))
    hyper, lora, validation = _split_hyperparameters(_table(body, "hyperparameters"))
    if validation or isinstance(training.get("validation"), dict):
        training["validation"] = validation | (training.get("validation") or {})
    files = data.pop("validation_files", None)
    config: Table = {"training": training, "hyperparameters": hyper, "data": data}
    if kind == "dpo":
        # The other keys state which weights are trained.
        config["algorithm"] = {"type": "offline", "method": "dpo", "variety": "fft"}
    if lora:
        config["lora"] = lora
    if compute := _table(effective, "compute", "metadata.effective_config."):
        config["compute"] = {k: v for k, v in compute.items() if v is not None}
    return JobRequest(
        _create(
            "sft",
            config,
            model=_text(body, "model"),
            training_file=_text(body, "training_file_id") or _text(body, "training_file"),
            validation_file=_text(body, "validation_file") or _first(files),
            body=body,
            kept=("suffix", "integrations", "tags"),
        )
    )


def _rl_config(data: Table, place: str) -> Table:
    """Return the configuration, sent parsed or as text; empty without one, which the validator then rejects."""
    if data.get("config") is not None:
        return dict(_table(data, "config", place))
    text = _text(data, "config_toml", place)
    if text is not None:
        _check_size(text, f"{place}config_toml")
        return dict(read_toml(text, name=f"{place}config_toml").data)
    if "job_config_id" in data:
        raise _bad_field(
            "there is only the id of a configuration",
            f"{place}job_config_id",
            expected=f"the configuration itself, in {place}config",
            fix="configurations are not kept here: send it whole",
        )
    return Table()


def _split_hyperparameters(given: Table) -> tuple[Table, Table, Table]:
    """Split hyperparameters, under our names, into general ones, the adapter's, and the validation's."""
    hyper, lora, validation = Table(), Table(), Table()
    for name, value in given.items():
        if value is None:
            continue
        if name in _VALIDATION:
            validation[name] = value
        elif name in _LORA:
            lora.setdefault(_LORA[name], [value] if name.endswith("modules") and isinstance(value, str) else value)
        else:
            hyper.setdefault(_HYPERPARAMETERS.get(name, name), value)
    return hyper, lora, validation


def _create(kind: str, config: Table, *, body: Table, kept: tuple[str, ...], **fields: Any) -> JobCreated:
    """Return the job. kept: other fields of the body that are returned with it, as metadata."""
    beside = body if "data" not in body else body | _table(body, "data")
    metadata = fields.pop("metadata", Table()) | _table(body, "metadata")
    metadata |= {name: beside[name] for name in kept if beside.get(name) is not None}
    text = msgspec.json.encode(config).decode()
    _check_size(text, "config")
    _check_size(metadata, "metadata")
    return JobCreated(
        config=text,
        config_name=f"{kind}.json",
        config_format="json",
        kind=kind,
        metadata=metadata,
        body_sha256="",
        allow_experimental=True,
        **fields,
    )


def _check_size(value: Any, place: str) -> None:
    size = len(msgspec.json.encode(value))
    if size > MAX_CONFIG_BYTES:
        raise _bad_field(f"{size} bytes", place, expected=f"at most {MAX_CONFIG_BYTES}", fix="put data into files")


def _table(holder: Table, name: str, place: str = "") -> Table:
    value = holder.get(name)
    if value is None:
        return Table()
    if not isinstance(value, dict):
        raise _bad_field(f"{name} is {str(value)[:40]!r}", f"{place}{name}", expected="an object")
    return cast(Table, value)


def _text(holder: Table, name: str, place: str = "") -> str | None:
    """Return the text under a name; None if it is missing or empty. Raises UserError for another type."""
    value = holder.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > MAX_CONFIG_BYTES):
        raise _bad_field(f"{name} is {str(value)[:40]!r}", f"{place}{name}", expected="a text")
    return value or None


def _first(files: Any) -> str | None:
    if files is None or files == []:
        return None
    place = "metadata.effective_config.data.validation_files"
    ids = cast(list[Any], files) if isinstance(files, list) else []
    if len(ids) != 1 or not isinstance(ids[0], str):
        raise _bad_field(f"{len(ids)} validation files", place, expected="a list of one file id")
    return ids[0]


def _bad_field(what: str, where: str, *, expected: str, fix: str = "") -> UserError:
    return UserError(what, expected=expected, fix=fix, where=where)
