"""A job file as the API takes it: read, checked on this machine, with the datasets that are still to be uploaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.api.limits import MAX_CONFIG_BYTES
from synth.client.connections.config import ARGUMENT, Config, ConfigValue
from synth.console.errors import UsageProblem
from synth.errors import Problem, UserError
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, require_job, validate_job
from synth.models import LORA_TARGETS, ModelSpec, Registry, parse_finetuned


class LenientRegistry(Registry):
    """Accepts models that are not on this machine: the cluster looks them up again.

    unknown_models: the problems that this machine has with them.
    """

    def __init__(self, models_dir: Path | None = None) -> None:
        super().__init__(models_dir)
        self.unknown_models: list[Problem] = []

    def find(self, model_id: str, *, where: str = "") -> ModelSpec:
        try:
            return super().find(model_id, where=where)
        except UserError as error:
            finetuned = parse_finetuned(model_id)
            if finetuned is None and ":" in model_id:
                raise
            self.unknown_models += error.problems
            base = finetuned.base if finetuned else model_id
            targets = LORA_TARGETS["qwen3"]
            return ModelSpec(
                id=model_id, base=base, family="qwen3", rl=True, sft=True, lora_targets=targets, assumed=True
            )


@dataclass(frozen=True)
class PreparedJob:
    """A job that may be submitted. files: its datasets by the body's fields, each an id or a path to upload.

    task_app: the address of its task app, with its source; None without one.
    """

    body: dict[str, Any]
    files: dict[str, str]
    task_app: ConfigValue | None


def job_body(text: str, *, config_name: str, **values: Any) -> dict[str, Any]:
    """Return the body of a submission. values: its other fields; None if the file decides.

    Only fields with a value are sent: two submissions are the same if their bodies are.
    """
    body = {"config": text, "config_name": config_name, **values}
    return {name: value for name, value in body.items() if value is not None}


def prepare(
    config: str | Path | Mapping[str, Any], settings: Config, overrides: Overrides, *, name: str | None
) -> PreparedJob:
    """Check a job file. Raises `UsageProblem` with every problem of its keys, values and datasets."""
    text, config_name = _read(config)
    app = settings.task_url
    if overrides.task_url is not None:
        app = ConfigValue(overrides.task_url, ARGUMENT, "task_url")
    try:
        document = read_toml(text, name=config_name)
        if app is not None and app.origin != ARGUMENT and "grader" in document.data:
            # The address for other jobs is no sign that a grader's job should use it.
            app = None
        overrides = dataclasses.replace(overrides, task_url=app and app.text)
        report = validate_job(document, overrides=overrides, registry=LenientRegistry(), uploaded=False)
        job = require_job(report, document).job
    except UserError as error:
        raise UsageProblem.of(error.problems) from error
    missing = [f for f in job.files if not f.id.startswith("file_") and not Path(f.id).is_file()]
    if missing:
        raise UsageProblem.of(
            [
                Problem(
                    what="there is no such file",
                    expected="a JSONL or Parquet file, or the id of an uploaded one",
                    where=f"{report.origins[file.field]} {file.id!r}",
                )
                for file in missing
            ]
        )
    if job.app is not None:
        place = ConfigValue("", report.origins.get("rollout.task_url", config_name))
        app = dataclasses.replace(app or place, text=job.app.task_url)
    body = job_body(
        text,
        config_name=config_name,
        task_url=overrides.task_url if job.app is not None else None,
        name=name,
        model=overrides.model,
        examples=overrides.examples,
        seed=overrides.seed,
        allow_experimental=overrides.allow_experimental or None,
    )
    return PreparedJob(body, {file.role: file.id for file in job.files}, app if job.app is not None else None)


def _read(config: str | Path | Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of a job file, and its name for messages."""
    if isinstance(config, Mapping):
        import tomlkit
        from tomlkit.exceptions import ConvertError

        try:
            return tomlkit.dumps(config), "job.toml"
        except (ConvertError, TypeError, ValueError) as error:
            raise UsageProblem(f"this is no job: {error}", expected="a dict of TOML's values") from error
    if isinstance(config, str) and "\n" in config:
        return config, "job.toml"
    try:
        with Path(config).open("rb") as file:
            body = file.read(MAX_CONFIG_BYTES + 1)
        text = body.decode()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        what = "there is no such file" if missing else f"cannot be read ({error.strerror})"
        fix = "a text of a job has a line break; a path is relative to the working directory"
        raise UsageProblem(what, expected="a TOML job file", fix=fix, where=str(config)) from error
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8"
        raise UsageProblem(what, expected="a TOML job file in UTF-8", where=str(config)) from error
    if len(body) > MAX_CONFIG_BYTES:
        what = f"it has more than {MAX_CONFIG_BYTES:,} bytes"
        raise UsageProblem(what, expected="a TOML job file", where=str(config))
    return text, str(config)
