"""Settings of the judge."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from synth.bus.rpc import SERVE_WITHIN_S
from synth.outbound.http_guard import GuardSettings
from synth.runtime.settings import ServiceSettings

#: The name that stands for the models of this cluster.
SYNTH = "synth"


class JudgeProvider(BaseModel):
    """An OpenAI-compatible chat API that the operator has set up. base_url: `…/v1`. Prices: in any one currency."""

    model_config = ConfigDict(extra="forbid")

    base_url: str = Field(pattern=r"^https?://")
    api_key: SecretStr = SecretStr("")
    requests_per_second: float | None = Field(default=None, gt=0)
    max_concurrency: int | None = Field(default=None, gt=0)
    price_per_million_prompt_tokens: float = Field(default=0.0, ge=0)
    price_per_million_completion_tokens: float = Field(default=0.0, ge=0)
    models: list[str] | None = None


class JudgeSettings(ServiceSettings, GuardSettings):
    """The judge's settings, beside the shared ones."""

    judge_providers: Annotated[dict[str, JudgeProvider], NoDecode] = Field(default_factory=dict[str, JudgeProvider])
    """The APIs that jobs may name as a judge's `provider`, as JSON: `{"openai": {"base_url": "https://api.openai.com/v1",
    "api_key": "…", "requests_per_second": 50, "max_concurrency": 64, "price_per_million_prompt_tokens": 0.4,
    "price_per_million_completion_tokens": 1.6, "models": ["…"]}}`. All but `base_url` may be left out; without `models`
    every model may be requested. `synth` is not a valid name: it stands for the models of this cluster."""

    judge_questions: int = Field(default=256, ge=1)
    """Questions that one process works at or keeps waiting, those included whose asker has given up for now."""

    judge_org_share: float = Field(default=0.25, gt=0, le=1)
    """The share of those questions that one organisation may have, its jobs and its calls of `/judge/v1/score`
    together; its questions beyond that wait, and the questions of others do not."""

    judge_org_connections: int = Field(default=100, ge=1)
    """Calls that one process makes at one time to the `url`s of one organisation's judges."""

    judge_answer_s: float = Field(default=SERVE_WITHIN_S - 2, gt=0, le=SERVE_WITHIN_S - 1)
    """Seconds after which a request gets the reply that the judge still works on it, and has to be repeated."""

    judge_work_s: float = Field(default=3.0, gt=0)
    """How often a process renews its lease of a question. After three times that in silence, another one takes it."""

    judge_abandon_s: float = Field(default=180.0, gt=0)
    """Seconds for which work continues that is no longer requested; a collector repeats its request every 50."""

    judge_rate_margin_s: float = Field(default=0.1, ge=0, lt=1)
    """If calls per second are limited, a second's calls are spread over a second plus this margin, so that the limit
    also holds in every second of their arrival: it covers different delays to the API and different clocks of the
    replicas. A call that would leave a quarter of it late takes another turn. 0.1 uses ten elevenths of a limit."""

    judge_patience_s: float = Field(default=10.0, ge=0)
    """The longest pause of an API (Retry-After) for which a question waits; with a longer one it gets the reply that
    the judge is away."""

    judge_breaker_failures: int = Field(default=5, ge=1)
    """Calls in a row without an answer after which an API is left alone for a while."""

    judge_breaker_timeout_s: float = Field(default=30.0, ge=0)
    """A call that ended at its own `timeout_s` counts as one without an answer only if that was at least so long: a
    job may choose a shorter time, which is no sign of a fault of the API."""

    judge_breaker_s: float = Field(default=5.0, gt=0)
    """For how long at first; the pause doubles each time that the one call after it fails, up to a minute."""

    judge_max_reply_bytes: int = Field(default=8 << 20, ge=1)
    """The largest answer of a judge's API."""

    judge_max_transcript_bytes: int = Field(default=32 << 20, ge=1)
    """The largest recording of a rollout that is judged; a larger one is refused before it is read."""

    judge_cache_s: float = Field(default=7 * 86_400.0, ge=3600)
    """Seconds for which the answers of judges are kept, so that the same prompt is not sent twice, and the bodies that
    were sent to be judged."""

    @field_validator("judge_providers", mode="before")
    @classmethod
    def _read_table(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return msgspec.json.decode(value or "{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ValueError(f"not a JSON object ({error})") from error

    @field_validator("judge_providers")
    @classmethod
    def _leave_our_name(cls, value: dict[str, JudgeProvider]) -> dict[str, JudgeProvider]:
        if SYNTH in value:
            raise ValueError(f"{SYNTH!r} stands for the models of this cluster: give the provider another name")
        return value
