"""Jobs that a grader pays: rows of files in place of a task app's episodes."""

from __future__ import annotations

from synth.errors import UserError
from synth.graders.schema import models_of, parse_grader
from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sections import default_of
from synth.methods.rewards import RewardSettings
from synth.methods.rollouts import GradedRows

_NO_APP = "has no effect: [grader] pays the rollouts, and there is no task app"
#: Keys of `[rollout]` and `[data]` that only a task app would read.
_OF_THE_APP = ("env_name", "policy_name", "ops", "env_config", "constrain_tools")
_OF_ITS_DATA = ("split", "evaluation_split")


def resolve_graded(config: RlConfig, context: ResolveContext, *, uploaded: bool) -> tuple[GradedRows | None, list[str]]:
    """Return the rows and their grader, None in a file without `[grader]`, and the models that the grader calls.

    uploaded: False before the upload, when a file may still be a path.
    """
    if config.grader is None:
        if config.job is not None and config.job.data is not None:
            context.warn(("job", "data"), "has no effect: without [grader] the task app has the data")
        if config.data.validation_path is not None:
            context.warn(("data", "validation_path"), "has no effect: without [grader] the task app has the data")
        return context.record("graded", None, "default"), []
    _check_no_app(config, context)
    if config.data.seeds is None:
        context.problem(
            ("data", "seeds"),
            "the rows to train on are missing",
            expected='the numbers of rows of [job].data, from 0, such as "0-99"',
            fix="set it: a file of 100 rows has the seeds 0-99",
        )
    place = context.document.where(("grader",))
    grader, models = config.grader, list[str]()
    try:
        parsed = parse_grader(config.grader, where=place, python=context.python_graders)
        grader, models = parsed.model_dump(mode="json", exclude_none=True), models_of(parsed)
    except UserError as error:
        context.problems += error.problems
    for path, file in (
        (("job", "data"), context.overrides.training_file),
        (("data", "validation_path"), context.overrides.validation_file),
    ):
        if file is not None:
            context.replace([path], file)
    written = context.overrides.training_file or (config.job.data if config.job else None)
    training_file = _file(written, ("job", "data"), context, uploaded=uploaded)
    validation_file = _file(
        context.overrides.validation_file or config.data.validation_path,
        ("data", "validation_path"),
        context,
        uploaded=uploaded,
        optional=True,
    )
    graded = GradedRows(
        grader=context.record("graded.grader", grader, place),
        training_file=context.record(
            "graded.training_file",
            training_file or "",
            "--dataset" if context.overrides.training_file else context.document.where(("job", "data")),
        ),
        validation_file=context.record(
            "graded.validation_file",
            validation_file,
            "default"
            if validation_file is None
            else "--validation"
            if context.overrides.validation_file
            else context.document.where(("data", "validation_path")),
        ),
    )
    return graded, models


def check_graded_rewards(rewards: RewardSettings, context: ResolveContext) -> None:
    """Report the settings that only a task app could fulfil: rewards of single turns, scores of its own, its rubric."""
    if rewards.steps is not None:
        context.problem(
            ("training",),
            "rewards of single steps are switched on, and a graded rollout is one reply",
            fix="set step_rewards_enabled = false",
        )
    if rewards.scores == "task_app":
        context.problem(
            ("rollout", "task_app_origin_rewards_only"), "there is no task app to give scores", fix="remove it"
        )
    if rewards.scores == "judges" and rewards.judging is not None and rewards.judging.rubric is None:
        context.problem(
            ("rubric",), "the judges have no rubric: there is no task app to give one", expected="[rubric.outcome]"
        )


def _check_no_app(config: RlConfig, context: ResolveContext) -> None:
    if config.services.task_url is not None or context.overrides.task_url is not None:
        context.problem(
            ("services", "task_url") if context.overrides.task_url is None else ("grader",),
            "a task app and a grader are both given, and a rollout has one reward",
            expected="[services].task_url or [grader]",
            fix="remove one of them",
        )
    turns = [config.rollout.max_turns if is_written(config.rollout, "max_turns") else None, config.training.max_turns]
    if any(turn is not None and turn > 1 for turn in turns):
        context.problem(
            ("rollout", "max_turns"), "a graded rollout is one reply", expected="1", fix="write a task app for more"
        )
    for section, keys in ((config.rollout, _OF_THE_APP), (config.data, _OF_ITS_DATA)):
        for key in keys:
            if is_written(section, key) and getattr(section, key) != default_of(type(section), key):
                context.warn(context.at(section, key), _NO_APP)


def _file(
    written: str | None, path: Path, context: ResolveContext, *, uploaded: bool, optional: bool = False
) -> str | None:
    if written is None:
        if not optional:
            context.problem(
                path,
                "there is no dataset",
                expected="a JSONL file whose rows have `messages` that end with the user's",
                fix="set it here, or pass --dataset",
            )
        return None
    if uploaded and not written.startswith("file_"):
        context.problem(
            path,
            f"the dataset {written[:80]!r} is a path, and was not uploaded",
            expected="the id of an uploaded file (file_…)",
            fix="`synthctl submit` uploads it; by hand: `synthctl files upload`",
        )
    return written
