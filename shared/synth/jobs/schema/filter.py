"""The TOML of a filter: which traces become rows to train on. `synthctl filter` runs it; it is not a job."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from synth.jobs.schema.sections import Section, TagsSection
from synth.tables.keys import Fraction, Name, NonNegative, Positive


class FilterSection(Section, frozen=True):
    """`[filter]`: make a JSONL of rows with `messages` out of traces.

    The traces are the platform's (`job`, `jobs` or `traces`), or a trace database's of the published clients (`db`).
    """

    db: Name | None = None
    """a trace database of the published clients: the path of a SQLite file"""
    job: Name | None = None
    """the traces of this job"""
    jobs: list[Name] | None = None
    """the traces of these jobs"""
    traces: bool | None = None
    """all traces of the organisation"""
    output: Name | None = None
    """the file that is written, .jsonl or .json"""
    mode: Literal["train", "eval"] | None = None
    """only rollouts of training, or of evaluations"""
    splits: list[Name] | None = None
    """only rollouts of these splits: the `split` of the task app or of `env_config`, else the mode"""
    task_ids: list[Name] | None = None
    """only rollouts of these tasks: the `task_id` of the task app, else the environment's name"""
    models: list[Name] | None = None
    """only rollouts of these models: of jobs with this source model"""
    seeds: list[int] | None = None
    """only rollouts of these seeds"""
    success: float | None = None
    """only rollouts that the policy did not fail, and whose environment pays at least this"""
    min_reward: float | None = None
    """only rollouts with at least this reward, judges' scores included"""
    max_reward: float | None = None
    """only rollouts with at most this reward, judges' scores included"""
    min_official_score: float | None = None
    """only rollouts with at least this reward of the environment"""
    max_official_score: float | None = None
    """only rollouts with at most this reward of the environment"""
    min_judge_scores: dict[str, float] | None = None
    """at least, by judge: `outcome`, `events`, or a criterion of the rubric"""
    max_judge_scores: dict[str, float] | None = None
    """at most, by judge"""
    min_created_at: Name | None = None
    """not before this time: ISO 8601, or seconds since 1970"""
    max_created_at: Name | None = None
    """not after this time"""
    min_tokens: NonNegative | None = None
    """only rollouts in which the model sampled at least this number of tokens"""
    max_tokens: NonNegative | None = None
    """only rollouts in which the model sampled at most this number of tokens"""
    top_k: Positive | None = None
    """of each seed, or task, the rollouts with the highest rewards; of equal ones the earliest"""
    top_k_by: Literal["seed", "task"] = "seed"
    """the unit that `top_k` counts by: a seed of a task, or a whole task"""
    deduplicate: bool | None = None
    """of rows with the same messages, only the one with the highest reward; applied before `top_k`"""
    limit: Positive | None = None
    """rows, at most"""
    offset: NonNegative | None = None
    """rows to skip"""
    shuffle: bool | None = None
    """in another order"""
    shuffle_seed: int | None = None
    """the seed of that order; default: 0"""
    input_db: Name | None = None
    """the database, in older files"""
    output_dir: Name | None = None
    """a directory for the files, in older files: `train.jsonl` in it"""
    min_steps_per_episode: NonNegative | None = None
    """only rollouts with at least this number of steps of the environment"""
    max_steps_per_episode: NonNegative | None = None
    """only rollouts with at most this number of steps of the environment"""
    min_achievements_per_episode: NonNegative | None = None
    """only rollouts with this number of achievements, as the task app counts them"""
    detect_loops: bool | None = None
    """drop rollouts that end in a circle: the same two to four actions three times over, or one six times"""
    max_repeated_actions: Positive | None = None
    """only rollouts that do no action more often than this in a row"""
    min_unique_states: NonNegative | None = None
    """only rollouts with at least this number of different observations; a rollout that reports none has 0"""
    filter_errors: bool | None = None
    """drop rollouts that the policy or the environment failed"""
    filter_timeouts: bool | None = None
    """drop rollouts that timed out, or whose last reply was cut off at its token limit"""
    export_format: Literal["sft_jsonl", "jsonl"] | None = None
    """of the rows: one conversation a line"""
    include_images: bool = True
    """whether rows keep their images, as data URLs; else the parts that show them are left out"""
    include_metadata: bool = True
    """whether rows keep their metadata: rollout, seed, reward, model, time"""


class FilterSftSection(Section, frozen=True):
    """`[sft]`: how rows are cleaned, in older files."""

    max_sequence_length: Positive | None = None
    """only rows of at most about this number of tokens: a longer row would be learned only in part"""
    deduplicate: bool | None = None
    """as `[filter] deduplicate`"""
    shuffle: bool | None = None
    """as `[filter] shuffle`"""
    require_valid_tool_calls: bool | None = None
    """drop rollouts with a tool call that cannot be read"""
    filter_empty_responses: bool | None = None
    """drop rows with an empty reply; a row without any other reply is always dropped"""


class FilterSplitSection(Section, frozen=True):
    """`[split]`: rows that are put aside for validation. The rows of a rollout stay together."""

    enabled: bool | None = None
    """whether there is a validation file"""
    val_fraction: Fraction = 0.1
    """the share of the rollouts in the validation file"""
    random_seed: int = 0
    """the seed that selects the rollouts of the validation file"""
    stratify_by: Literal["achievements", "reward", "seed", "task"] | None = None
    """the same share of the rollouts of each such group, rounded"""
    train_file: Name = "train.jsonl"
    """the name of the rows' file in `output_dir`"""
    val_file: Name = "val.jsonl"
    """the name of the validation file, beside the rows"""


class FilterOutputSection(Section, frozen=True):
    """`[output]`: further files beside the rows."""

    save_stats: bool | None = None
    """whether the counts by key are written, as JSON"""
    stats_file: Name = "filter_stats.json"
    """where"""
    save_filtered_episode_ids: bool | None = None
    """whether the ids of the rollouts whose rows are kept are listed with the counts"""


class FilterConfig(Section, frozen=True):
    """A filter."""

    filter: FilterSection = Field(default=FilterSection())
    sft: FilterSftSection = Field(default=FilterSftSection())
    split: FilterSplitSection = Field(default=FilterSplitSection())
    output: FilterOutputSection = Field(default=FilterOutputSection())
    tags: TagsSection = TagsSection()
    """to find it by"""
