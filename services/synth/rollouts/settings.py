"""Settings of the rollouts service."""

from __future__ import annotations

from pydantic import Field

from synth.environment_keys import EnvironmentKeySettings
from synth.graders.python.settings import PythonPoolSettings
from synth.outbound.answer_memory import AnswerSettings
from synth.outbound.http_guard import GuardSettings
from synth.plugins import PluginSettings
from synth.runtime.settings import ServiceSettings


class RolloutsSettings(
    ServiceSettings, GuardSettings, EnvironmentKeySettings, PythonPoolSettings, PluginSettings, AnswerSettings
):
    """The settings of a collector beside the shared ones."""

    jobs: int = 16
    """Jobs that one process collects for at the same time, evaluations among them, by turns of their organisations; as
    many again for organisations that have none in the pool."""

    inference_public_url: str | None = None
    """Where task apps reach the inference service; None: each replica's own address."""

    policy_wait_s: float = 3600.0
    """How long a collector waits for a policy version, or for a process that serves it, before it hands its task back:
    as long as a model may take to load (`SYNTH_LOAD_TIMEOUT_S`). A rollout whose recording was lost is played again
    within it."""

    max_answer_depth: int = Field(default=100, ge=8, le=200)
    """How deeply the objects and lists of a task app's answer may lie in one another; a deeper one is an error of the
    environment."""

    max_graded_characters: int = Field(default=200_000, ge=1)
    """The most characters of the texts of one comparison of a grader, whose cost grows with the product of their
    lengths. A longer reply scores 0, and the transcript names the reason."""

    teacher_timeout_s: float = Field(default=600.0, gt=0)
    """How long the teacher of a job that is distilled may take to score one sequence, with its wait in the engine; then
    the request is sent again."""

    teacher_requests: int = Field(default=16, ge=1)
    """The most sequences of one job that are sent to its teacher at the same time."""

    answer_grace_s: float = Field(default=60.0, gt=0)
    """How long a task app may take to answer after the time of its rollout is over, at most as long again as the
    rollout had. A reply that is cut off then reaches the app, which scores it."""

    recorder_timeout_s: float = Field(default=30.0, gt=0)
    """How long an inference process may take to hand over its records; then the rollout is played again."""

    transcript_bytes: int = Field(default=1 << 20, ge=4096)
    """The largest transcript of a rollout (its messages, and its task app's answer), in bytes of JSON. A longer
    one is shortened and marked as shortened; tokens and rewards are kept whole elsewhere. Images are never in it,
    only their digest."""
