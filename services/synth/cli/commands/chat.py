"""`synthctl chat`: talk to a model of the cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.completion import complete_models
from synth.cli.tui.output import Format, Output
from synth.console.errors import CliError, ExitCode, UsageProblem

if TYPE_CHECKING:
    from synth.client import Client


def chat(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A base or fine-tuned model's id.", autocompletion=complete_models)
    ],
    message: Annotated[
        str | None, typer.Option("-m", "--message", help="Say this and print the reply; - reads standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a reply, at most.")] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="MODEL", help="Ask this model too, and show both.", autocompletion=complete_models
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds to wait while the model is loaded.")
    ] = 120.0,
    fmt: Output = Format.TABLE,
) -> None:
    """Talk to a model: one message with -m, else a conversation; /help there lists its commands.

    `--with BASE` sends each message to two models and shows the replies side by side. `-o json` prints the whole
    completion as the API returns it (with -m only), of two models as `replies`.
    """
    options = {"temperature": temperature, "max_tokens": max_tokens}
    options = {name: value for name, value in options.items() if value is not None}
    models = [model] if beside is None else [model, beside]
    if len(set(models)) != len(models):
        raise UsageProblem(f"{beside} is compared with itself", expected="another model", where="--with")
    speakers = [Speaker({"model": m, **options}, []) for m in models]
    for speaker in speakers:
        speaker.set_system(system or "")
    if message is None and not sys.stdin.isatty():
        message = "-"
    text = sys.stdin.read().strip() if message == "-" else message
    if text is not None and not text.strip():
        raise UsageProblem("the message is empty", expected="some text", where="--message")
    with open_client(ctx) as client:
        if text is None:
            if fmt is Format.JSON:
                raise UsageProblem("-o json needs a message", fix="say it with -m TEXT")
            for m in models:
                _check_model(client, m)
            converse(client, speakers, patience)
            return
        for speaker in speakers:
            speaker.history.append({"role": "user", "content": text})
        if fmt is Format.JSON:
            replies = [client.chat(**s.request, patience=patience).completion for s in speakers]
            output.print_json(replies[0] if beside is None else {"replies": replies})
        else:
            _print_replies(client, speakers, patience)


def _check_model(client: Client, model: str) -> None:
    """Raises `NotFound` before anything is typed. A running job's policy goes by the job's id."""
    if model.startswith("job_"):
        client.jobs.get(model)
    else:
        client.models.get(model)


@dataclass
class Speaker:
    """A model, with the conversation that it has had. options: of every request to it."""

    options: dict[str, Any]
    history: list[dict[str, Any]]

    @property
    def model(self) -> str:
        return str(self.options["model"])

    @property
    def request(self) -> dict[str, Any]:
        """The fields of the next request."""
        return {**self.options, "messages": self.history}

    def start_anew(self) -> None:
        """Forget the conversation, but keep the system message."""
        self.history[:] = [message for message in self.history if message["role"] == "system"]

    def set_system(self, text: str) -> None:
        """Set the system message; "" for none."""
        self.history[:] = [m for m in self.history if m["role"] != "system"]
        if text:
            self.history.insert(0, {"role": "system", "content": text})

    @property
    def system(self) -> str:
        """The system message; "" for none."""
        return next((str(m["content"]) for m in self.history if m["role"] == "system"), "")


_HELP = (
    ("/system TEXT", "set the system message; without TEXT show it; /system - removes it"),
    ("/clear", "forget the conversation, and keep the system message"),
    ("/help", "this list"),
    ("/exit", "end, as Ctrl-D and Ctrl-C do; during a reply Ctrl-C stops the reply"),
)


def converse(client: Client, speakers: list[Speaker], patience: float) -> None:
    """Talk until Ctrl-D, Ctrl-C or /exit. speakers: who answers each message."""
    import readline  # noqa: F401 - gives `input` its line editing

    output.hint(f"{' · '.join(s.model for s in speakers)} · Ctrl-C stops a reply, and then ends; /help")
    while True:
        try:
            text = input("› ").strip()
        except (EOFError, KeyboardInterrupt):
            output.print_line("")
            return
        if text in ("/exit", "/quit"):
            return
        if text and not _obey(text, speakers):
            _say(client, speakers, text, patience)


def _obey(text: str, speakers: list[Speaker]) -> bool:
    """Run the command of a line that begins with a slash; return False for a line that is a message to the model."""
    word, _, rest = text.partition(" ")
    if not word.startswith("/") or "/" in word[1:]:
        return False
    match word:
        case "/help":
            output.print_pairs(_HELP)
        case "/clear":
            for speaker in speakers:
                speaker.start_anew()
            output.hint("forgotten")
        case "/system" if not rest.strip():
            output.message(speakers[0].system or "no system message")
        case "/system":
            for speaker in speakers:
                speaker.set_system("" if rest.strip() == "-" else rest.strip())
            output.hint("from the next message on")
        case _:
            output.warn(f"there is no command {word}; /help lists them")
    return True


def _say(client: Client, speakers: list[Speaker], text: str, patience: float) -> None:
    """Say something, and show the replies. What was not answered in full is not remembered."""
    for speaker in speakers:
        speaker.history.append({"role": "user", "content": text})
    replies: list[str] = []
    try:
        replies = _print_replies(client, speakers, patience)
    except KeyboardInterrupt:
        output.print_line("")
    except CliError as error:
        if error.code in (ExitCode.AUTH, ExitCode.NOT_FOUND, ExitCode.UNREACHABLE):
            raise
        output.show_problems(error.problems)
    for n, speaker in enumerate(speakers):
        if replies:
            speaker.history.append({"role": "assistant", "content": replies[n]})
        else:
            speaker.history.pop()


def _print_replies(client: Client, speakers: list[Speaker], patience: float) -> list[str]:
    if len(speakers) == 1:
        return [_print_reply(client, speakers[0], patience)]
    if not output.is_terminal():
        return [_print_named_reply(client, speaker, patience) for speaker in speakers]
    from synth.cli.tui.tables.two_replies import print_together

    streams = [client.chat_stream(**s.request, patience=patience) for s in speakers]
    return print_together([s.model for s in speakers], streams, console=output.out())


def _print_named_reply(client: Client, speaker: Speaker, patience: float) -> str:
    output.print_line(f"[{speaker.model}]")
    return _print_reply(client, speaker, patience)


def _print_reply(client: Client, speaker: Speaker, patience: float) -> str:
    pieces: list[str] = []
    for piece in client.chat_stream(**speaker.request, patience=patience):
        pieces.append(piece)
        output.print_piece(piece)
    output.print_line("")
    return "".join(pieces)
