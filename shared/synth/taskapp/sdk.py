"""A task app in about 40 lines: describe the task, write one episode, serve it.

    math = TaskApp("math", name="Sums", description="What is a + b?")

    @math.episode
    async def answer(ep: Episode) -> float:
        reply = await ep.chat([{"role": "user", "content": question(ep.seed)}])
        return score(reply.content)

    serve(math, port=8001)

An episode returns its reward, or records steps (`Episode.step`) or an outcome (`Episode.outcome`) and returns nothing.

Each failure is attributed: PolicyFailure is the policy's (200, no reward, `policy_failure`), InferenceUnavailable the
platform's (502), UserError the job's, which requests something that the app does not have (422), any other error the
environment's (500), and overtime is a 504. Errors of an agent's own client or framework are also attributed to one of
these (`synth.taskapp.blame`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import textwrap
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from synth.errors import InvalidKey, Problem, UserError
from synth.runtime.environment.env_file import read_env_file
from synth.runtime.lines import split_lines
from synth.runtime.startup import build_struct_types
from synth.taskapp.auth import configured_keys, error, refusal
from synth.taskapp.blame import blame
from synth.taskapp.contract import Metrics, RolloutRequest, RolloutResponse, Step, Trajectory
from synth.taskapp.episode import BadOutcome, Episode, Outcome, rollout_credential
from synth.taskapp.faults import Fault, fault_at, fault_of
from synth.taskapp.llm import ChatClients, InferenceUnavailable, PolicyFailure, completions_url
from synth.taskapp.server import listen, make_server, url_of
from synth.taskapp.threads import run_in_thread
from synth.taskapp.trace import Trace, tracing_enabled

log = logging.getLogger(__name__)

_MOST_SEEDS_ASKED = 1000
_F = TypeVar("_F", bound=Callable[..., Any])


class TaskApp:
    """An environment behind the task-app contract.

    id: its name in jobs (`env_name`). max_turns: the most calls of the model in a rollout. rubric: the criteria for
    judges, `{"outcome": …, "events": …}`, in the answers of `/info` and `/task_info`. keys: the environment keys; None:
    the keys of the process's environment.
    """

    def __init__(
        self,
        id: str,
        *,
        name: str,
        description: str,
        version: str = "1",
        max_turns: int = 1,
        dataset: dict[str, Any] | None = None,
        rubric: dict[str, Any] | None = None,
        keys: list[str] | None = None,
        clients: ChatClients | None = None,
    ) -> None:
        self.id = id
        self.max_turns = max_turns
        self._task = {"id": id, "name": name, "description": description, "version": version}
        self._dataset = dataset or {"id": id, "splits": ["train"], "default_split": "train"}
        self._rubric = rubric or {}
        self._keys = keys
        self._clients = clients or ChatClients()
        self._describe: Callable[[int], Mapping[str, Any]] = lambda seed: {}
        self._episode: Callable[[Episode], Any] | None = None

    @property
    def keys(self) -> list[str]:
        """The environment keys that open it."""
        return configured_keys() if self._keys is None else self._keys

    def episode(self, function: _F) -> _F:
        """Register the function that plays one rollout: an `async def`, or a `def`, which runs in its own thread.

        It returns a finite number (or a bool), the rollout's reward in place of the sum over its steps; or nothing, if
        it has recorded a step or an outcome.

        The deadline of a thread is the rollout's (`safety.max_time_s`), but a thread cannot be stopped: past the
        deadline the rollout is answered with a 504, and the function continues until it returns by itself. Its calls of
        the model are refused once the rollout is over. Give its client a timeout. `ep.chat` is for `async def` alone.
        """
        self._episode = function
        return function

    def task_info(self, function: _F) -> _F:
        """Register the function that describes one seed's task: `seed -> dict`, without the answer."""
        self._describe = function
        return function

    def asgi(self) -> Starlette:
        """Return the web app. Raises UserError without an episode: it could not answer `/rollout`."""
        if self._episode is None:
            raise UserError(
                Problem(
                    what=f"the task app {self.id!r} has no episode",
                    expected="a function that plays one rollout, registered with @episode",
                    fix="decorate it: @app.episode",
                    where=self.id,
                )
            )
        build_struct_types()  # episodes run in threads
        routes = [
            Route("/", self._root, methods=["GET", "HEAD"]),
            Route("/health", self._guarded(self._health)),
            Route("/info", self._guarded(self._info)),
            Route("/task_info", self._guarded(self._task_info)),
            Route("/rollout", self._guarded(self._rollout), methods=["POST"]),
        ]

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncGenerator[None]:
            yield
            await self._clients.close()

        return Starlette(routes=routes, lifespan=lifespan)

    def _guarded(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                return refusal(request, self.keys) or await endpoint(request)
            except asyncio.CancelledError:
                # The server cancels requests that are under way when it stops; the caller gets the reason.
                return error(503, "stopping", "the task app is being stopped")
            except Exception as broken:  # noqa: BLE001 - the app's own code, which may raise anything
                return _broken(f"{request.method} {request.url.path}", fault_of(broken))

        return guarded

    async def _root(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "service": self.id})

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"healthy": True, "auth": {"required": True}})

    async def _info(self, request: Request) -> Response:
        return JSONResponse(
            {
                "service": {"task": self._task, "version": self._task["version"]},
                "dataset": self._dataset,
                "rubrics": self._rubric,
                "inference": {},
                "limits": {"max_turns": self.max_turns},
            }
        )

    async def _task_info(self, request: Request) -> Response:
        requested = request.query_params.getlist("seed")
        if not requested:
            taskset = {**self._dataset, "task": self._task}
            return JSONResponse({"taskset": taskset, "env_names": [self.id]})
        if len(requested) > _MOST_SEEDS_ASKED or not all(
            s.isascii() and s.isdigit() and len(s) < 17 for s in requested
        ):
            return error(422, "bad_seed", f"seed: at most {_MOST_SEEDS_ASKED} whole numbers of 0 or more")
        infos = [self._info_of(int(s)) for s in requested]
        return JSONResponse(infos if len(infos) > 1 else infos[0])

    def _info_of(self, seed: int) -> dict[str, Any]:
        return {
            "task": self._task,
            "environment": self.id,
            "dataset": self._dataset,
            "rubric": self._rubric,
            "inference": {},
            "limits": {"max_turns": self.max_turns},
            "task_metadata": {"seed": seed, **self._describe(seed)},
        }

    async def _rollout(self, request: Request) -> Response:
        try:
            call = RolloutRequest.model_validate_json(await request.body())
            episode = self._begin(call, request.state.environment_key)
        except ValidationError as bad:
            first = bad.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            return error(422, "bad_request", f"{place}: {first['msg']}")
        except (ValueError, InvalidKey) as bad:
            return error(422, "bad_request", str(bad))
        doing = f"the episode of seed {episode.seed}, run {call.run_id}"
        overtime = asyncio.timeout(call.safety.max_time_s)
        try:
            async with overtime:
                failure = await self._play(episode)
            body = _response(self, episode, failure).model_dump_json(fallback=_plain)
        except UserError as refused:
            return error(422, "bad_request", str(refused), **_played(self, episode))
        except InferenceUnavailable as unavailable:
            return error(502, "inference_unavailable", str(unavailable), **_played(self, episode))
        except BadOutcome as bad:
            fault = fault_at(self._episode, str(bad))
            return _broken(doing, fault, code="bad_outcome", **_played(self, episode))
        except Exception as broken:  # noqa: BLE001 - the app's own code, which may raise anything
            if overtime.expired():
                if not isinstance(broken, TimeoutError):
                    _log_fault(f"{doing}, was past its deadline and", fault_of(broken))
                what = f"not done within {call.safety.max_time_s:g} s"
                return error(504, "rollout_timeout", what, **_played(self, episode))
            return _broken(doing, fault_of(broken), **_played(self, episode))
        return Response(body, media_type="application/json")

    async def _play(self, episode: Episode) -> PolicyFailure | None:
        assert self._episode is not None
        try:
            if inspect.iscoroutinefunction(self._episode):
                returned = await self._episode(episode)
            else:
                play = self._episode
                returned = await run_in_thread(lambda: play(episode))
                # A plain function may return a coroutine: functools.partial, a lambda, a callable object.
                if inspect.isawaitable(returned):
                    returned = await returned
        except Exception as raised:
            fault = blame(raised, url=episode.url)
            if isinstance(fault, PolicyFailure):
                return fault
            if fault is not None and fault is not raised:
                raise fault from raised
            raise
        episode.settle(returned)
        return None

    def _begin(self, body: RolloutRequest, environment_key: str) -> Episode:
        config = body.policy.config
        url = config.get("inference_url")
        if not isinstance(url, str):
            raise ValueError("policy.config.inference_url is missing: where is the model?")
        url = completions_url(url)
        if body.env.seed is None or body.env.seed < 0:
            raise ValueError("env.seed is missing: a whole number of 0 or more")
        named = body.env.env_name or body.env.env_id
        if named not in (None, self.id):
            raise ValueError(f"env.env_name is {named!r}, this task app is {self.id!r}")
        most_calls = config.get("max_llm_calls")
        turns = most_calls if isinstance(most_calls, int) and 0 < most_calls < self.max_turns else self.max_turns
        return Episode(
            seed=body.env.seed,
            env_config=body.env.config,
            policy_config=config,
            max_turns=turns,
            request=body,
            url=url,
            clients=self._clients,
            ends=time.monotonic() + body.safety.max_time_s,
            # In training the platform records every token itself, and requests traces only because some apps insist.
            trace=_new_trace(body, url) if body.record.return_trace and body.mode == "eval" else None,
            # It goes only to its sender: the caller that gave the model's address has sent this very key.
            credential=None if rollout_credential(url) else environment_key,
        )


def _broken(doing: str, fault: Fault, *, code: str = "environment_error", **beside: Any) -> JSONResponse:
    """Return the answer of status 500 for an error in the app's own code, and log it for its author.

    beside: as in `error`.
    """
    _log_fault(doing, fault)
    message = split_lines(fault.what)[0] + (f" ({fault.place})" if fault.place else "")
    return error(500, code, message, traceback=fault.lines(), **beside)


def _log_fault(doing: str, fault: Fault) -> None:
    log.error("%s failed\n%s", doing, textwrap.indent(fault.text(), "  "))


def _response(app: TaskApp, episode: Episode, failure: PolicyFailure | None) -> RolloutResponse:
    requested, steps = episode.request, episode.steps
    correlation = requested.policy.config.get("trace_correlation_id")
    details: dict[str, Any] = {}
    if failure is not None:
        details["policy_failure"] = {"code": failure.code, "message": str(failure)}
        steps = [*steps, Step(done=True, info={"meta": {"inference_url": episode.url}, **details})]
    outcome = Outcome(sum(s.reward or 0.0 for s in steps)) if episode.earned is None else episode.earned
    earned = None if failure is not None else outcome.score
    returns = [] if failure is not None else [sum(s.reward or 0.0 for s in steps)]
    metrics = Metrics(
        episode_returns=returns,
        mean_return=returns[0] if returns else None,
        outcome_score=earned,
        events_score=None if failure is not None else outcome.events,
        num_steps=len(steps),
        details={**outcome.details, **details},
    )
    return RolloutResponse(
        run_id=requested.run_id,
        trajectories=[_trajectory(app, episode, steps)],
        metrics=metrics,
        aborted=failure is not None,
        ops_executed=2 * episode.calls,
        trace_correlation_id=correlation if isinstance(correlation, str) else None,
        trace=_trace(app, episode, earned),
        pipeline_metadata={"inference_url": episode.url},
    )


def _trajectory(app: TaskApp, episode: Episode, steps: list[Step]) -> Trajectory:
    policy = episode.request.policy
    return Trajectory(
        env_id=app.id,
        policy_id=policy.policy_name or policy.policy_id or "policy",
        steps=steps,
        length=len(steps),
        inference_url=episode.url,
    )


def _played(app: TaskApp, episode: Episode) -> dict[str, Any]:
    """Return the steps before an error, for the answer: they show how the error arose."""
    played = _trajectory(app, episode, episode.steps).model_dump_json(fallback=_plain)
    return {"trajectories": [json.loads(played)]}


def _plain(value: Any) -> Any:
    """Return a value that JSON does not have in another form: an array's numbers, else its text."""
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)


def _new_trace(asked: RolloutRequest, url: str) -> Trace:
    kept = tracing_enabled()
    # The platform keeps the images that its own model is shown, so an answer to it need not have them again.
    return Trace(asked.run_id, images=rollout_credential(url) is None if kept is None else kept)


def _trace(app: TaskApp, episode: Episode, earned: float | None) -> dict[str, Any] | None:
    """Return the trace, if one is requested, with the values to find it by."""
    if episode.trace is None:
        return None
    about = {
        "env_name": app.id,
        "seed": episode.seed,
        "policy_name": episode.request.policy.policy_name,
        "model": episode.policy_config.get("model"),
        "total_reward": earned,
    }
    return {"session_trace": episode.trace.session(about)}


def serve(app: TaskApp, *, port: int, host: str = "127.0.0.1", ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM. Raises UserError when the port is taken, or the app has no episode.

    ready: called with the app's address once the port is open; a `port` of 0 takes a free one.
    The environment key is taken from the environment, or from `.env` in the working directory.
    """
    if not configured_keys():
        os.environ.update({k: v for k, v in read_env_file(Path(".env")).items() if k.startswith("ENVIRONMENT_API_KEY")})
    # httpx logs each URL, and the URL's cid is a credential.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    server = make_server(app.asgi())
    listener = listen(host, port)
    ready(url_of(listener))
    server.run(sockets=[listener])
