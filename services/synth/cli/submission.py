"""Create a job from a TOML: check it here first, upload its files, submit it once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth.api.schemas import Job, SubmittedJob
from synth.cli.api.task_app import TaskAppConnection, TaskAppError, require_address, turns_of
from synth.cli.confirmation import confirm, remember
from synth.cli.jobs.files import Flags, validate_text
from synth.cli.jobs.set_values import set_values
from synth.cli.task_apps.preflight import preflight
from synth.cli.transfer.upload import upload_ready
from synth.cli.tui import output
from synth.client import Client
from synth.client.connections.config import Config, ConfigValue
from synth.client.submission import LenientRegistry, job_body
from synth.console.errors import CliError
from synth.jobs.lifecycle import TERMINAL
from synth.jobs.resolve.job import ValidationReport, require_job
from synth.methods.job import Job as ResolvedKind

if TYPE_CHECKING:
    from synth.cli.tui.follow import FollowOptions

#: Seconds for an app's answer about itself: a job is submitted without it, too.
_INFO_S = 5.0


@dataclass(frozen=True)
class CheckedJob:
    """A job whose file passed the checks of this machine. text: includes the values that the flags set."""

    text: str
    name: str
    flags: Flags
    found: ValidationReport

    @classmethod
    def of(cls, text: str, *, name: str, flags: Flags, found: ValidationReport) -> CheckedJob:
        """Make the job of this text, which does not yet include the values that the flags set."""
        return cls(set_values(text, name=name, settings=flags.settings)[0], name, flags, found)

    @property
    def job(self) -> ResolvedKind:
        assert self.found.job is not None
        return self.found.job

    @property
    def task_app(self) -> ConfigValue | None:
        """The task app's address with the place that names it, a setting or a line of the file; None without an app."""
        app = self.job.app
        if app is None:
            return None
        place = ConfigValue("", self.found.origins.get("rollout.task_url", self.name))
        return dataclasses.replace(self.flags.task_url or place, text=app.task_url)

    @property
    def kind(self) -> str:
        return self.job.kind


def check_locally(text: str, *, name: str, flags: Flags, models_dir: Path | None) -> CheckedJob:
    """Check a job without a backend. Raises `UserError` with every problem and its `file:line`.

    models_dir: the models of a cluster on this machine, if it has one.
    """
    document, result = validate_text(text, name=name, flags=flags, registry=LenientRegistry(models_dir))
    require_job(result, document)
    return CheckedJob.of(text, name=name, flags=flags, found=result)


def submit_job(
    client: Client,
    config: Config,
    checked: CheckedJob,
    *,
    key: str | None,
    name: str | None = None,
    check_timeout: float = 600.0,
    looks: bool = True,
    trust_app: bool = False,
) -> SubmittedJob:
    """Upload the files that the job needs, and submit it.

    key: the idempotency key, a new one when None. name: of the job; its file's when None. check_timeout: seconds until
    an uploaded dataset is checked. looks: check the job's task app first, with `preflight`, which may refuse it.
    trust_app: the user confirms the app's origin. Raises `UnconfirmedOrigin`, having sent nothing, without it.
    """
    job, flags, app = checked.job, checked.flags, checked.task_app
    if app is not None:
        confirm_app(config, app, trusted=trust_app)
        if looks and job.app is not None:
            place = checked.found.origins["rollout.env_name"]
            preflight(app, config, client, env_name=ConfigValue(job.app.env_name or "", place))
    files = {role: _uploaded(client, file, check_timeout) for role, file, _ in job.files}
    if not files and config.environment_key is not None and app is not None:
        # The verifier tries the keys that belong to the app's address: the one in use here must be among them.
        client.keys.add_environment_key(config.environment_key.text, app.text)
    if flags.task_url is not None and app is not None and flags.task_url.origin != "--task-url":
        output.hint(f"task app: {flags.task_url.text}, from {flags.task_url.label}")
    body = submission_body(checked, name=name, files=files)
    with output.status("submitting"):
        created = client.jobs.create(body, idempotency_key=key)
    if created.repeats is not None:
        once = f"if one is enough: synthctl jobs cancel {created.id}"
        output.hint(f"{created.repeats} is the same submission, sent within the last minute; {once}")
    return created


def submission_body(checked: CheckedJob, *, files: Mapping[str, str], name: str | None = None) -> dict[str, Any]:
    """Return the body of a submission. files: its datasets by their fields. name: of the job; its file's when None."""
    job, flags = checked.job, checked.flags
    return job_body(
        checked.text,
        config_name=checked.name,
        **files,
        task_url=flags.task_url.text if flags.task_url is not None and job.app is not None else None,
        name=name,
        model=flags.model,
        examples=flags.examples,
        seed=flags.seed,
        allow_experimental=flags.allow_experimental or None,
    )


def task_app_address(flag: str | None, settings: Config) -> ConfigValue | None:
    """Return the task app's address: the flag, else TASK_APP_URL of the environment or an env file, else the file's."""
    if flag is not None:
        return ConfigValue(flag, "--task-url")
    if settings.task_url is None:
        return None
    return settings.task_url


def confirm_app(settings: Config, address: ConfigValue, *, trusted: bool) -> None:
    """Have the user confirm that the environment key, if any, may be sent to a task app. trusted: a flag does it."""
    require_address(address)
    if trusted:
        remember("ENVIRONMENT_API_KEY", address.text)
    elif settings.environment_key is not None:
        confirm(settings.environment_key, address)


def app_max_turns(address: ConfigValue, settings: Config) -> int | None:
    """Return how often a rollout may call the model; None if the task app has no such limit, or does not answer.

    The cluster may reach an app that this machine does not reach: the verifier reports its problems later.
    """
    try:
        with TaskAppConnection(address, settings.environment_key) as app:
            return turns_of(app.answer("GET", "/info", timeout=_INFO_S))
    except TaskAppError:
        return None


def follow_or_detach(client: Client, job: Job, *, follow: bool, options: FollowOptions, format: output.Format) -> int:
    """Follow the job, or say how to; returns the exit code."""
    from synth.cli.tui.follow import follow_job

    if follow:
        output.message(f"submitted {job.id}")
        if options.detaches:
            output.hint(f"Ctrl-C detaches; to end the job: synthctl jobs cancel {job.id}")
        else:
            output.hint("Ctrl-C ends the job: its task app is served by this command")
        return follow_job(client, job.id, format=format, options=options)
    if options.timeout is not None:
        output.warn("--poll-timeout has no effect: the job is not followed")
    if format is output.Format.JSON:
        output.print_json(job)
    else:
        output.print_line(job.id)
        output.hint(f"submitted; watch it with: synthctl jobs watch {job.id}")
    return 0


@contextmanager
def cancelled_if_left(client: Client, job_id: str) -> Iterator[None]:
    """Cancel the job if the block ends before the job has: nobody would play its rollouts."""
    try:
        yield
    finally:
        if client.jobs.get(job_id).state not in TERMINAL:
            client.jobs.cancel(job_id)
            output.message(f"{job_id} is cancelled: its task app was served by this command")


def _uploaded(client: Client, file: str, check_timeout: float) -> str:
    """Return a file's id; a path is uploaded first."""
    if file.startswith("file_"):
        return file
    try:
        return upload_ready(client, Path(file), timeout=check_timeout).id
    except CliError:
        output.message("nothing was submitted")
        raise
