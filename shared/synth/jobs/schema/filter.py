"""The TOML of a filter: which recorded rollouts become rows to train on. It runs where the traces are."""

from __future__ import annotations

from pydantic import Field

from synth.jobs.schema.sections import Free, Name, NonNegative, Positive, Section, TagsSection


class FilterSection(Section):
    """`[filter]`: from a trace database to a JSONL of rows with `messages`."""

    db: Name | None = None
    """the trace database: a path or a DSN"""
    output: Name | None = None
    """the file that is written, .jsonl or .json"""
    splits: list[Name] | None = None
    """only rollouts of these splits"""
    task_ids: list[Name] | None = None
    """only rollouts of these tasks"""
    models: list[Name] | None = None
    """only rollouts of these models"""
    min_official_score: float | None = None
    """only rollouts with at least this reward"""
    max_official_score: float | None = None
    """only rollouts with at most this reward"""
    min_judge_scores: dict[str, float] | None = None
    """at least, by judge"""
    max_judge_scores: dict[str, float] | None = None
    """at most, by judge"""
    min_created_at: Name | None = None
    """not before this time"""
    max_created_at: Name | None = None
    """not after this time"""
    limit: Positive | None = None
    """rows, at most"""
    offset: NonNegative | None = None
    """rows to skip"""
    shuffle: bool | None = None
    """in another order"""
    shuffle_seed: int | None = None
    """of that order"""
    input_db: Name | None = None
    """the database, in older files"""
    output_dir: Name | None = None
    """a directory for the files, in older files"""
    min_steps_per_episode: NonNegative | None = None
    """only rollouts with at least so many steps"""
    max_steps_per_episode: NonNegative | None = None
    """only rollouts with at most so many steps"""
    min_achievements_per_episode: NonNegative | None = None
    """only rollouts with so many achievements"""
    detect_loops: bool | None = None
    """drop rollouts that repeat themselves"""
    max_repeated_actions: Positive | None = None
    """what repeating means"""
    min_unique_states: NonNegative | None = None
    """what not repeating means"""
    filter_errors: bool | None = None
    """drop rollouts with errors"""
    filter_timeouts: bool | None = None
    """drop rollouts that timed out"""
    export_format: Name | None = None
    """of the rows"""
    include_images: bool | None = None
    """whether rows keep their images"""
    include_metadata: bool | None = None
    """whether rows keep their metadata"""


class FilterConfig(Section):
    """A filter."""

    filter: FilterSection = Field(default=FilterSection())
    sft: Free | None = None
    """how rows are cleaned, in older files"""
    split: Free | None = None
    """how rows are split, in older files"""
    output: Free | None = None
    """what else is written, in older files"""
    tags: TagsSection = TagsSection()
    """to find it by"""
