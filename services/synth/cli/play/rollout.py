"""Plays one rollout of a task app with the platform's request."""

from __future__ import annotations

import json
import queue
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from synth.cli.api.task_app import TaskAppConnection, TaskAppError, excerpt
from synth.cli.play.models import Body, Typist, completion_of, read_typed
from synth.cli.play.relay import ModelRelay
from synth.console.errors import CliError, ExitCode
from synth.errors import Problem
from synth.runtime.startup import build_struct_types
from synth.taskapp.contract import RolloutResponse, Step

#: Calls of a rollout on the platform: so many for each turn, and at least so many.
_CALLS_A_TURN = 4
_FEWEST_CALLS = 8
#: The number of turns if neither the person nor the app sets one.
_TURNS = 10


#: A line of an app's traceback that names a place in it.
_PLACE = re.compile(r"(\S.*:\d+), in .*")


class AppFailed(CliError):
    """The app answered with an error of its own. traceback: its last lines, if the app sends them."""

    code = ExitCode.ERROR

    def __init__(self, what: str, *, where: str, traceback: list[str]) -> None:
        super().__init__(what, where=where)
        self.traceback = traceback


@dataclass(frozen=True)
class Asked:
    """The options of a rollout. max_turns: None leaves it to the app. timeout_s: for the whole rollout."""

    seed: int
    env_name: str | None
    max_turns: int | None
    sampling: Body
    timeout_s: float


@dataclass(frozen=True)
class Played:
    """The app's answer. reward: None if the policy failed."""

    reward: float | None
    steps: list[Step]
    policy_failure: Body | None
    details: Body
    problems: list[Problem]


def most_calls(turns: int) -> int:
    """Return how often the agent may call the model."""
    return max(_CALLS_A_TURN * turns, _FEWEST_CALLS)


def request_of(asked: Asked, *, inference_url: str, credential: str, turns: int | None, model: str) -> Body:
    """Return the body of `POST /rollout`. turns: the task's own, if the app reports them."""
    shown = asked.max_turns or turns or _TURNS
    config: Body = {**asked.sampling, "model": model, "inference_url": inference_url}
    config["trace_correlation_id"] = credential
    if asked.max_turns is not None:
        config["max_llm_calls"] = asked.max_turns
    env: Body = {"config": {}, "seed": asked.seed}
    if asked.env_name is not None:
        env["env_name"] = asked.env_name
    ops = ["agent", "env"] * shown
    return {
        "run_id": f"play_{uuid.uuid4().hex}",
        "mode": "rl",
        "env": env,
        "policy": {"policy_name": "policy", "config": config},
        "ops": ops,
        "record": {"trajectories": True, "return_trace": True, "trace_format": "structured"},
        "on_done": "terminate",
        "safety": {"max_ops": len(ops), "max_time_s": asked.timeout_s},
    }


def play(
    client: TaskAppConnection,
    body: Body,
    *,
    relay: ModelRelay,
    typist: Typist | None,
    timeout_s: float,
    asks: Callable[[Body], None],
) -> Played:
    """Play the rollout. A person's replies, if `typist` is set, are read here, in the calling thread.

    asks: shows a person each request. Raises `CliError`: the app's own fault, or why the model could not answer.
    """
    done: queue.SimpleQueue[Played | BaseException] = queue.SimpleQueue()
    wake = typist.asked if typist else queue.SimpleQueue[Any]()

    def ask_app() -> None:
        try:
            done.put(_read(client, body, timeout_s))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            done.put(error)
        wake.put(None)

    build_struct_types()
    threading.Thread(target=ask_app, name="rollout", daemon=True).start()
    while (call := wake.get()) is not None:
        request, reply = call
        asks(request)
        try:
            reply.set_result(completion_of(read_typed("› "), model=str(request.get("model") or "policy")))
        except CliError as error:
            reply.set_exception(error)
    outcome = done.get()
    if isinstance(outcome, BaseException):
        # The app's error follows from the model's.
        raise relay.error or outcome
    return outcome


def _read(client: TaskAppConnection, body: Body, timeout_s: float) -> Played:
    reply = client.reply("POST", "/rollout", json=body, timeout=timeout_s)
    if reply.status_code != 200:
        raise _failure(client, reply.status_code, reply.text, _json(reply.text))
    answer = client.json_of("/rollout", reply)
    try:
        response = RolloutResponse.model_validate(answer)
    except ValueError as error:
        what = f"does not answer a rollout: {excerpt(str(error))}"
        raise TaskAppError(what, expected="`trajectories` and `metrics`", where=f"{client.url}/rollout") from error
    steps = [step for trajectory in response.trajectories for step in trajectory.steps]
    failure, reward = response.policy_failure(), response.reward()
    problems: list[Problem] = []
    if reward is None and failure is None and not response.aborted:
        expected = "metrics.outcome_score or metrics.mean_return"
        problems.append(Problem(what="the answer has no reward", expected=expected, where=f"{client.url}/rollout"))
    if response.aborted and failure is None:
        failure = {"code": "aborted", "message": "the app ended the rollout without a reward"}
    return Played(reward, steps, failure, response.metrics.details, problems)


def _json(text: str) -> Body:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return cast(Body, value) if isinstance(value, dict) else {}


def _failure(client: TaskAppConnection, status: int, text: str, answer: Body) -> CliError:
    where = f"{client.url}/rollout"
    detail = answer.get("detail")
    error = cast(Body, detail).get("error") if isinstance(detail, dict) else None
    fields = cast(Body, error) if isinstance(error, dict) else {}
    if status in (400, 401, 403) and "unauthori" in text.lower():
        return client.refused("/rollout", status)
    shown = answer.get("traceback")
    lines = [str(line) for line in cast(list[Any], shown)] if isinstance(shown, list) else []
    message = str(fields.get("message") or excerpt(text))
    places = [match[1] for line in lines if (match := _PLACE.fullmatch(line))]
    if places:
        raised = "the app raised " if fields.get("code") == "environment_error" else ""
        return AppFailed(f"{raised}{message.removesuffix(f' ({places[-1]})')}", where=places[-1], traceback=lines)
    return AppFailed(f"the app failed (HTTP {status}): {message}", where=where, traceback=lines)
