"""One rollout, as an environment's author sees it: the task, the policy, and the record of its rewards."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, SupportsFloat
from urllib.parse import urlsplit, urlunsplit

from synth.rollout_credential import find_credential
from synth.taskapp.contract import NotAReward, RolloutRequest, Step, read_reward
from synth.taskapp.llm import ChatClients, PolicyFailure, Reply
from synth.taskapp.trace import Trace

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "thinking_mode",
    "thinking_budget",
)

_WAYS = "a number, which is the reward, or nothing, after ep.step(reward=…) or ep.outcome(…)"


class BadOutcome(Exception):
    """An episode ended without a clear reward: its code must be changed."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a whole rollout. score: its reward; events: of the events on the way; details: for people."""

    score: float
    events: float | None = None
    details: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Episode:
    """One rollout, as the author of an environment sees it.

    env_config, policy_config: from the job's file. max_turns: how often `chat` may call the model. credential: sent to
    a model whose address carries none, as in an evaluation by the published client. ends: when its time is over, by
    `time.monotonic()`.

    An agent with its own client is attached by two texts, `OpenAI(base_url=ep.base_url, api_key=ep.api_key)`, or
    by the environment variables OPENAI_BASE_URL and OPENAI_API_KEY.
    """

    seed: int
    env_config: dict[str, Any]
    policy_config: dict[str, Any]
    max_turns: int
    request: RolloutRequest
    url: str
    clients: ChatClients
    ends: float
    trace: Trace | None = None
    credential: str | None = None
    steps: list[Step] = field(default_factory=list[Step])
    calls: int = 0
    earned: Outcome | None = None
    _called: list[Any] = field(default_factory=list[Any])
    """The tool calls of the replies since the last step."""

    @property
    def base_url(self) -> str:
        """The model's address for an OpenAI client: `…/v1`, without a query. `api_key` opens it."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path.removesuffix("/chat/completions"), "", ""))

    @property
    def api_key(self) -> str:
        """The key that goes with `base_url`, a secret: this rollout's credential, else the environment key."""
        return rollout_credential(self.url) or self.credential or ""

    async def chat(self, messages: list[dict[str, Any]], **extra: Any) -> Reply:
        """Send messages to the policy, with the request's model and sampling, and `extra` (tools, tool_choice …)."""
        if self.calls >= self.max_turns:
            raise PolicyFailure(f"{self.max_turns} turns are used up", code="max_turns")
        self.calls += 1
        body = {k: self.policy_config[k] for k in _SAMPLING if self.policy_config.get(k) is not None}
        body |= {"model": self.policy_config.get("model", "policy"), "messages": messages, **extra}
        headers = {"X-API-Key": self.credential} if self.credential else None
        began = time.monotonic()
        reply = await self.clients.chat(self.url, body, within=self.ends - began, headers=headers)
        self._called += reply.message.get("tool_calls") or []
        if self.trace is not None:
            tools: list[dict[str, Any]] = extra.get("tools") or []
            self.trace.called(messages, reply.body, tools=tools, seconds=time.monotonic() - began)
        return reply

    def step(
        self,
        *,
        obs: Any = None,
        reward: float | None = None,
        done: bool = False,
        truncated: bool | None = None,
        tool_calls: list[Any] | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        """Record one decision and its reward. The rollout's reward is the sum over its steps, or its `outcome`.

        obs, info: the environment's answer, for readers of the rollout; any JSON value, and other values as their text.
        truncated: whether the episode ends here by a limit, and not by the task itself. tool_calls: default: the tool
        calls of the replies since the last step.

        Raises ValueError when the reward is not a finite number: JSON would turn it into "no reward".
        """
        reward = None if reward is None else read_reward(reward, "the reward of a step")
        if self.trace is not None:
            self.trace.stepped(reward=reward, done=done, truncated=bool(truncated))
        info_fields = info or {}
        meta = {"inference_url": self.url, **info_fields.get("meta", {})}
        called, self._called = self._called, []
        self.steps.append(
            Step(
                obs=obs,
                reward=reward,
                done=done,
                truncated=truncated,
                tool_calls=called if tool_calls is None else tool_calls,
                info={**info_fields, "meta": meta},
                # An agent with its own client does not call through this class.
                after_call=self.calls or None,
            )
        )

    def outcome(self, score: float, *, events: float | None = None, details: dict[str, Any] | None = None) -> None:
        """Set the reward of the whole rollout: `score`, in place of the sum over its steps.

        events: a score of the events on the way, which is shown and not trained. details: for readers of the rollout.
        The last call counts; after a failure of the policy none does.

        Raises ValueError when a score is not a finite number: JSON would turn it into "no reward".
        """
        score = read_reward(score, "the score of the outcome")
        events = None if events is None else read_reward(events, "the events of the outcome")
        self.earned = Outcome(score, events, details or {})

    def settle(self, returned: Any) -> None:
        """Use the return value of the episode's function: a number is the outcome, in place of the sum over the steps.

        Raises `BadOutcome` for any other value that is not None, for a number that differs from `outcome`, and for None
        if nothing is recorded.
        """
        if returned is None:
            if not self.steps and self.earned is None:
                raise BadOutcome(f"the episode returned nothing, and recorded no step and no outcome; expected {_WAYS}")
            return
        if not isinstance(returned, SupportsFloat):
            raise BadOutcome(f"the episode returned a value of type {type(returned).__name__}; expected {_WAYS}")
        try:
            score = read_reward(returned, "the reward that the episode returned")
        except NotAReward as error:
            raise BadOutcome(str(error)) from error
        if self.earned is None:
            self.earned = Outcome(score)
        elif self.earned.score != score:
            what = f"the episode returned {score:g}, and ep.outcome recorded {self.earned.score:g}"
            raise BadOutcome(f"{what}; expected one of them, or the same number in both")


def rollout_credential(url: str) -> str | None:
    """Return the credential in a model's address, or None."""
    parts = urlsplit(url)
    return find_credential(path=parts.path, query=parts.query)
