"""From a TOML to a created job: checked here first, its files uploaded, submitted once."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.cli import output
from synth.cli.client import Client
from synth.cli.config import Config
from synth.cli.errors import CliError, UsageProblem
from synth.cli.objects import Job
from synth.cli.uploads import check_readable, upload_ready
from synth.errors import UserError
from synth.jobs.resolve import Overrides, check_job
from synth.jobs.resolved import ResolvedJob, SftJob
from synth.jobs.toml import read_toml
from synth.models import LORA_TARGETS, ModelSpec, Registry, parse_finetuned

_MOST_BYTES = 256 * 1024


class _OtherMachine(Registry):
    """Models that this machine does not know may well be on the cluster's: there they are looked up again."""

    def find(self, model_id: str, *, where: str = "") -> ModelSpec:
        try:
            return super().find(model_id, where=where)
        except UserError:
            finetuned = parse_finetuned(model_id)
            if finetuned is None and ":" in model_id:
                raise
            base = finetuned.base if finetuned else model_id
            targets = LORA_TARGETS["qwen3"]
            return ModelSpec(id=model_id, base=base, family="qwen3", rl=True, sft=True, lora_targets=targets)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line puts in place of the file."""

    model: str | None = None
    dataset: Path | None = None
    validation: Path | None = None
    task_url: str | None = None
    examples: int | None = None
    seed: int | None = None
    allow_experimental: bool = False


@dataclass(frozen=True)
class Draft:
    """A job that is right as far as this machine can tell."""

    text: str
    name: str
    flags: Flags
    resolved: ResolvedJob

    @property
    def kind(self) -> str:
        return str(type(self.resolved.job).__struct_config__.tag)


def read_config(path: Path) -> str:
    """A job file's text, `-` for standard input. Raises `UsageProblem`."""
    if str(path) == "-":
        return sys.stdin.read()
    if not path.is_file():
        what = "this is a directory" if path.is_dir() else "there is no such file"
        raise UsageProblem(what, expected="a TOML job file", fix="examples are in configs/", where=str(path))
    if path.stat().st_size > _MOST_BYTES:
        raise UsageProblem(f"{path.stat().st_size} bytes", expected="a TOML job file", where=str(path))
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8"
        raise UsageProblem(what, expected="a TOML job file in UTF-8", where=str(path)) from error


def draft(text: str, *, name: str, flags: Flags, models_dir: Path) -> Draft:
    """Check a job without a backend. Raises `UserError` with every problem and its `file:line`."""
    overrides = Overrides(
        model=flags.model,
        training_file=_text(flags.dataset),
        validation_file=_text(flags.validation),
        task_url=flags.task_url,
        examples=flags.examples,
        seed=flags.seed,
        allow_experimental=flags.allow_experimental,
    )
    resolved = check_job(
        read_toml(text, name=name), overrides=overrides, registry=_OtherMachine(models_dir), uploaded=False
    )
    job = resolved.job
    if isinstance(job, SftJob):
        for file in (job.training_file, job.validation_file):
            if file is not None and not file.startswith("file_"):
                check_readable(Path(file))
    return Draft(text, name, flags, resolved)


def create(client: Client, config: Config, draft: Draft, *, key: str | None) -> Job:
    """Upload what the job needs and submit it. key: the idempotency key, a new one when None."""
    job, flags = draft.resolved.job, draft.flags
    body: dict[str, Any] = {"config": draft.text, "config_name": draft.name}
    if isinstance(job, SftJob):
        body["training_file"] = _uploaded(client, job.training_file)
        body["validation_file"] = _uploaded(client, job.validation_file)
    elif config.environment_key is not None:
        # The verifier tries every key that it knows: the one in use here must be among them.
        client.add_environment_key(config.environment_key.text)
    body |= {"model": flags.model, "task_url": flags.task_url, "examples": flags.examples, "seed": flags.seed}
    # Sent where it is asked for alone: a submission is the same one by its body.
    body["allow_experimental"] = flags.allow_experimental or None
    body = {name: value for name, value in body.items() if value is not None}
    with output.status("submitting"):
        return client.create_job(body, key=key or uuid.uuid4().hex)


def finish(client: Client, job: Job, *, follow: bool, format: output.Format) -> int:
    """Follow the job, or say how to; returns the exit code."""
    from synth.cli.follow import follow_job

    if follow:
        output.message(f"submitted {job.id}")
        output.hint(f"Ctrl-C detaches; to end the job: synthctl jobs cancel {job.id}")
        return follow_job(client, job.id, format=format)
    if format is output.Format.JSON:
        output.print_json(job)
    else:
        output.print_line(job.id)
        output.hint(f"submitted; watch it with: synthctl jobs watch {job.id}")
    return 0


def _uploaded(client: Client, file: str | None) -> str | None:
    """A file's id, the file being uploaded when it is a path."""
    if file is None or file.startswith("file_"):
        return file
    try:
        return upload_ready(client, Path(file)).id
    except CliError:
        output.message(f"nothing was submitted: the dataset {file} is not ready")
        raise


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
