"""`synthctl play`: one rollout of a task app, to be read."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.cli.connect import Backend, EnvFiles, TrustApp, get_env_files, load_config, override_options
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.console.errors import CliError, UsageProblem

if TYPE_CHECKING:
    from synth.cli.play.models import ModelChoice, Typist
    from synth.cli.play.rollout import Played
    from synth.client.connections.config import Config

_TIMEOUT_S = 3600.0


def play(
    ctx: typer.Context,
    app: Annotated[
        str,
        typer.Argument(metavar="APP", help="An app's id, a file (app.py), a module (pkg.app), or a running app's URL."),
    ],
    seed: Annotated[int, typer.Option(min=0, help="The instance of the task.")] = 0,
    model: Annotated[
        str | None, typer.Option(metavar="ID", help="The model that plays; without one, you type its replies.")
    ] = None,
    model_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible endpoint that has it, instead of the cluster; its key is OPENAI_API_KEY.",
        ),
    ] = None,
    env_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment; the app's own if none.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", min=0, help="Of the sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Sampled tokens a call, at most.")] = None,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Calls of the model, at most; the app's own if none.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds for the whole rollout.")] = _TIMEOUT_S,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST", help="An address of this machine at which an app elsewhere reaches the model."),
    ] = "127.0.0.1",
    trust_app: TrustApp = False,
    trust_model_url: Annotated[
        bool,
        typer.Option("--trust-model-url", help="Confirm the endpoint's origin: OPENAI_API_KEY is sent to it."),
    ] = False,
    backend: Backend = None,
    env_file: EnvFiles = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Play one rollout of a task app and print it: the conversation, the reward of each step, the total.

    The app is a file, which is loaded here, or one that runs. The model is one of the cluster; without SYNTH_API_KEY,
    one at OPENAI_BASE_URL. Without `--model` you are the model: a line you type is a reply, and
    `/call NAME {"key": "value"}` calls a tool. Lines may also come from a file or a pipe.

    Nothing is trained and nothing is kept. The exit code is 1 when the app fails.
    """
    from synth.cli.api.task_app import turns_of
    from synth.cli.play.models import Typist
    from synth.cli.play.relay import ModelRelay
    from synth.cli.play.rollout import AppFailed, Asked, most_calls, request_of
    from synth.cli.play.rollout import play as play_rollout
    from synth.cli.play.show import as_json, outcome, transcript_of, unheard
    from synth.cli.tui.rollout.conversation import conversation
    from synth.cli.tui.rollout.lines import print_lines

    override_options(ctx, backend=backend, env_files=env_file)
    settings = load_config(ctx, may_be_new=True)
    typist = Typist() if model is None else None
    chosen = _choose(model, model_url, settings, typist, trusted=trust_model_url)
    sampling: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
    options = Asked(
        seed=seed,
        env_name=env_name,
        max_turns=max_turns,
        sampling={key: value for key, value in sampling.items() if value is not None},
        timeout_s=timeout,
    )
    with contextlib.ExitStack() as open_things:
        opened = _open_app(app, settings, get_env_files(ctx), trusted=trust_app)
        name, client = open_things.enter_context(opened)
        _check_env_name(env_name, client.task_info(), client.url)
        turns = turns_of(client.answer("GET", f"/task_info?seed={seed}"))
        say = open_things.enter_context(output.status("playing")) if typist is None else None
        heard = (lambda n: say(f"turn {n}")) if say else (lambda n: None)
        limit = most_calls(max_turns or turns or 1)
        relay = ModelRelay(chosen.answer, options.sampling, limit, host=listen, heard=heard)
        open_things.enter_context(relay)
        player = f"{chosen.name} at {chosen.where}" if chosen.name else f"you: {chosen.where}"
        output.hint(f"{name} on seed {seed}, played by {player}")
        body = request_of(
            options,
            inference_url=relay.url,
            credential=relay.credential,
            turns=turns,
            model=chosen.name or "policy",
        )
        began = time.monotonic()
        played: Played | None = None
        failed: CliError | None = None

        def asks(request: dict[str, Any]) -> None:
            if sys.stdin.isatty():
                print_lines(unheard(request, relay.calls))

        # The app's own output goes to stderr, since the rollout is the data.
        with contextlib.redirect_stdout(sys.stderr) if typist is None else contextlib.nullcontext():
            try:
                played = play_rollout(client, body, relay=relay, typist=typist, timeout_s=timeout, asks=asks)
            except CliError as error:
                failed = error
    if fmt is Format.JSON:
        if played is not None:
            output.print_json(as_json(played, relay.calls, app=name, seed=seed, model=chosen.name))
    else:
        print_lines(conversation(transcript_of(relay.calls, played.steps if played else [])))
        if played is not None:
            print_lines(outcome(played))
            count = len(relay.calls)
            output.hint(f"{count} call{'s' * (count != 1)}, {output.duration(time.monotonic() - began)}")
    if isinstance(failed, AppFailed):
        for line in failed.traceback:
            output.message(line)
    if failed is not None:
        raise failed
    assert played is not None
    if played.problems:
        raise CliError.of(played.problems)


def _choose(
    model: str | None, model_url: str | None, settings: Config, typist: Typist | None, *, trusted: bool
) -> ModelChoice:
    """Return who plays. trusted: a flag confirms the endpoint of `--model-url`. Raises `UsageProblem`."""
    from synth.cli.play.models import ModelChoice, of_cluster, of_endpoint
    from synth.client.connections.config import ENVIRONMENT, ConfigValue

    if model is None:
        assert typist is not None
        if model_url is not None:
            raise UsageProblem("--model-url without --model", expected="the id of a model there", where="--model-url")
        return ModelChoice(None, "a line is a reply, /call NAME {…} a tool call", typist.answer)
    endpoint = None
    if model_url is not None:
        endpoint = ConfigValue(model_url, "flag", "--model-url")
    elif settings.api_key is None and os.environ.get("OPENAI_BASE_URL"):
        endpoint = ConfigValue(os.environ["OPENAI_BASE_URL"], ENVIRONMENT, "OPENAI_BASE_URL")
    return of_endpoint(model, endpoint, trusted=trusted) if endpoint else of_cluster(model, settings)


@contextlib.contextmanager
def _open_app(app: str, settings: Config, env_files: Any, *, trusted: bool) -> Iterator[tuple[str, Any]]:
    """Open a running app, or load one from a file while the block runs; yields its name and its client."""
    from synth.cli.api.task_app import TaskAppConnection
    from synth.cli.submission import confirm_app
    from synth.client.connections.config import ConfigValue, extend_environment

    if "://" in app:
        address = ConfigValue(app, "the command line")
        confirm_app(settings, address, trusted=trusted)
        with TaskAppConnection(address, settings.environment_key) as client:
            yield app, client
        return
    from synth.cli.task_apps.environment import read_environment
    from synth.local.task_apps.loading import load_task_app
    from synth.runtime.environment.env_file import new_environment_key
    from synth.taskapp.server import serving

    read_environment(env_files)
    # Of this process alone: nobody else is to open it.
    extend_environment({"ENVIRONMENT_API_KEY": new_environment_key()})
    loaded = load_task_app(app)
    # An exception of the app's code is the outcome here; it is printed at the end.
    logging.getLogger("synth.taskapp").setLevel(logging.CRITICAL)
    key = ConfigValue(loaded.keys[0], "of the app itself", "ENVIRONMENT_API_KEY")
    with serving(loaded.asgi()) as url, TaskAppConnection(ConfigValue(url, "this command"), key) as client:
        yield loaded.id, client


def _check_env_name(asked: str | None, info: dict[str, Any], url: str) -> None:
    from synth.errors import UserError
    from synth.taskapp.env_names import env_names, wrong_env_name

    if wrong := wrong_env_name(asked, env_names(info), where="--env-name", url=url):
        raise UserError(wrong)
