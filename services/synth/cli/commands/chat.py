"""`synthctl chat`: talk to a model of the cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.cli.connect import open_client
from synth.cli.errors import CliError, ExitCode, UsageProblem
from synth.cli.tui import output
from synth.cli.tui.completion import complete_models
from synth.cli.tui.output import Format, Output

if TYPE_CHECKING:
    from synth.cli.api.client import Client


def chat(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A base or fine-tuned model's id.", show_default=False, autocompletion=complete_models
        ),
    ],
    message: Annotated[
        str | None, typer.Option("-m", "--message", help="Say this and print the reply; - reads standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a reply, at most.")] = None,
    patience: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds to wait while the model is loaded.")
    ] = 120.0,
    fmt: Output = Format.TABLE,
) -> None:
    """Talk to a model: one message with -m, else a conversation until Ctrl-D.

    `-o json` prints the whole completion as the API gives it (with -m only).
    """
    options = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
    options = {name: value for name, value in options.items() if value is not None}
    history: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    if message is None and not sys.stdin.isatty():
        message = "-"
    text = sys.stdin.read().strip() if message == "-" else message
    if text is not None and not text.strip():
        raise UsageProblem("the message is empty", expected="some text", where="--message")
    with open_client(ctx) as client:
        if text is None:
            if fmt is Format.JSON:
                raise UsageProblem("-o json needs a message", fix="say it with -m TEXT")
            _check_model(client, model)
            _converse(client, options, history, patience)
            return
        history.append({"role": "user", "content": text})
        if fmt is Format.JSON:
            output.print_json(client.chat({**options, "messages": history}, patience=patience))
        else:
            _print_reply(client, options, history, patience)


def _check_model(client: Client, model: str) -> None:
    """Raises `NotFound` before anything is typed. A running job's policy goes by the job's id."""
    if model.startswith("job_"):
        client.job(model)
    else:
        client.model(model)


def _converse(client: Client, options: dict[str, Any], history: list[dict[str, Any]], patience: float) -> None:
    import readline  # noqa: F401 - gives `input` its line editing

    output.hint(f"{options['model']} · Ctrl-C stops a reply, Ctrl-D ends")
    while True:
        try:
            text = input("› ").strip()
        except EOFError:
            output.print_line("")
            return
        except KeyboardInterrupt:
            output.print_line("")
            continue
        if text in ("/exit", "/quit"):
            return
        if not text:
            continue
        history.append({"role": "user", "content": text})
        try:
            reply = _print_reply(client, options, history, patience)
        except KeyboardInterrupt:
            output.print_line("")
            reply = None
        except CliError as error:
            if error.code in (ExitCode.AUTH, ExitCode.NOT_FOUND, ExitCode.UNREACHABLE):
                raise
            output.show_problems(error.problems)
            reply = None
        if reply is None:
            history.pop()
        else:
            history.append({"role": "assistant", "content": reply})


def _print_reply(client: Client, options: dict[str, Any], history: list[dict[str, Any]], patience: float) -> str:
    said: list[str] = []
    for piece in stream_text(client, {**options, "messages": history, "stream": True}, patience):
        said.append(piece)
        output.print_piece(piece)
    output.print_line("")
    return "".join(said)


def stream_text(client: Client, body: dict[str, Any], patience: float) -> Iterator[str]:
    """Yield the pieces of a streamed reply."""
    import msgspec

    from synth.api.sse import read_sse

    with client.stream_chat(body, patience=patience) as reply:
        for sse in read_sse(reply.iter_bytes()):
            if sse is None or sse.data == "[DONE]":
                continue
            chunk: dict[str, Any] = msgspec.json.decode(sse.data)
            if error := chunk.get("error"):
                raise CliError(str(error.get("message") or error), where=str(body["model"]))
            for choice in chunk.get("choices") or []:
                if text := (choice.get("delta") or {}).get("content"):
                    yield text
