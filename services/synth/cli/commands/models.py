"""`synthctl models …`: base models and fine-tuned ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, Data
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.completion import complete_models
from synth.cli.tui.output import Format, Output, Yes
from synth.console.errors import UsageProblem

if TYPE_CHECKING:
    from synth.local.tiny_models.qwen3 import MadeModel
    from synth.models import ModelSpec

app = typer.Typer(help="Models: ls, known, pull, download, rm, make, alias, aliases, unalias.", no_args_is_help=True)
make_app = typer.Typer(help="Make a small base model on this machine.", no_args_is_help=True)
app.add_typer(make_app, name="make")


@app.command("ls")
def ls(ctx: typer.Context, fmt: Output = Format.TABLE) -> None:
    """List the models that can be chatted with, evaluated and trained from."""
    with open_client(ctx) as client:
        models = client.models.list()
    if fmt is Format.JSON:
        return output.print_json(models)
    rows = [[m.id, m.kind, m.base or "-", m.stand_in or "-", output.age(m.created_at)] for m in models]
    output.print_table(("id", "kind", "base", "stand-in", "age"), rows, wrap="base")
    if not models:
        output.hint("no models yet: synthctl models make tiny-qwen3")
    return None


@app.command("known")
def known(fmt: Output = Format.TABLE) -> None:
    """List every base id that a job may name, and what may be done with it, whether its weights are here or not."""
    from synth.models import QWEN3

    if fmt is Format.JSON:
        return output.print_json([{**_facts(spec), "modes": spec.modes} for spec in QWEN3.values()])
    rows: list[list[str]] = []
    for spec in QWEN3.values():
        notes = [("experimental", spec.experimental), ("thinks", spec.thinking), ("sees", spec.vision is not None)]
        # A mixture of experts shows all its parameters, and the number of active ones.
        active = "" if spec.active_parameters == spec.parameters else f"-A{spec.active_parameters:g}B"
        params = f"{spec.parameters:g}B{active}"
        rows.append([spec.id, params, " ".join(spec.modes), ", ".join(n for n, so in notes if so) or "-"])
    return output.print_table(("id", "params", "modes", "notes"), rows, wrap="notes")


@app.command("alias")
def alias(
    model: Annotated[str, typer.Argument(metavar="ID", help="A base's id.")],
    stand_in: Annotated[str, typer.Argument(metavar="STAND_IN", help="A local model's id.")],
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Let a local model run under the id of a base whose weights are not here, as `alias Qwen/Qwen3-0.6B tiny-qwen3`.

    Every service of this machine's cluster knows it within a second. Jobs, events and models say what really ran.
    """
    from synth.models import Registry

    spec = Registry(data / "models").alias(model, stand_in)
    if fmt is Format.JSON:
        return output.print_json({"id": spec.id, "stand_in": spec.stand_in})
    return output.message(f"{spec.stand_in} stands in for {spec.id}")


@app.command("aliases")
def aliases(data: Data = DEFAULT_DATA, fmt: Output = Format.TABLE) -> None:
    """List what stands in for what on this machine."""
    from synth.models import Registry

    pairs = Registry(data / "models").stand_ins()
    if fmt is Format.JSON:
        return output.print_json(pairs)
    output.print_table(("id", "stand-in"), [list(pair) for pair in sorted(pairs.items())])
    if not pairs:
        output.hint("nothing stands in: synthctl models alias Qwen/Qwen3-0.6B tiny-qwen3")
    return None


@app.command("unalias")
def unalias(
    model: Annotated[str, typer.Argument(metavar="ID", help="A base's id.")],
    data: Data = DEFAULT_DATA,
) -> None:
    """Remove the stand-in of a base. Models trained from it meanwhile still report the stand-in."""
    from synth.models import Registry

    stand_in = Registry(data / "models").unalias(model)
    output.message(f"{stand_in} no longer stands in for {model}")


@app.command("download")
def download(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's id.", autocompletion=complete_models)],
    out: Annotated[Path | None, typer.Option(help="The directory; by default one named after the model.")] = None,
    with_base: Annotated[
        bool, typer.Option("--with-base", help="Download an adapter's base too, into the folder `base`.")
    ] = False,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Download a model, a base or a trained one, as a Hugging Face directory; prints its path.

    Files that are already there are kept. The first time, the cluster reads a base's files for their digests. An
    adapter names its base: by its id on the model hub, else by its folder on this machine.
    """
    from synth.cli.transfer.download import download_model, locate_base

    target = out or Path(model.replace("/", "_").replace(":", "-"))
    if target.is_file():
        raise UsageProblem("this is a file", expected="a directory, or a name that is free", where=str(target))
    with open_client(ctx) as client:
        files = download_model(client, model, target)
        locate_base(client, target, data / "models", download=with_base)
    if fmt is Format.JSON:
        return output.print_json({"model": model, "path": str(target), "files": [str(f) for f in files]})
    return output.print_line(str(target))


@app.command("rm")
def rm(
    ctx: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL…", help="Ids of models.", autocompletion=complete_models)
    ],
    yes: Yes = False,
    fmt: Output = Format.TABLE,
) -> None:
    """Delete models that jobs made, or checkpoints of jobs that have ended; prints their ids.

    Their files stay while a job that was started from them runs, and below an adapter that is there.
    """
    output.confirm(f"delete {', '.join(models)}?", yes=yes)
    with open_client(ctx) as client:
        for model in models:
            client.models.delete(model)
            if fmt is Format.TABLE:
                output.print_line(model)
    if fmt is Format.JSON:
        output.print_json({"deleted": models})


@app.command("pull")
def pull(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="An id of the model hub, or a model's folder.")],
    name: Annotated[str | None, typer.Option(help="The model's id here; by default as it is called there.")] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit of the hub.")] = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Fetch a base model's weights, such as Qwen/Qwen3-0.6B, for this machine's cluster. Prints their path.

    After an interruption, the next pull continues. HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE apply as for the
    hub's own tools; files in their cache are not downloaded again.
    """
    from synth.cli.transfer.pull import pull_folder, pull_from_hub

    models_dir = data.resolve() / "models"
    folder = Path(source).expanduser()
    local = source.startswith((".", "/", "~")) or folder.is_dir()
    with output.status(f"pulling {source}") as show:
        shown = _PullProgress(source, show)
        if local:
            pulled = pull_folder(folder, models_dir, id=name or folder.resolve().name)
        elif name is not None:
            raise UsageProblem("a model of the hub keeps its id", fix="leave --name out", where="--name")
        else:
            pulled = pull_from_hub(source, models_dir, revision=revision, show=shown)
    if fmt is Format.JSON:
        return output.print_json(pulled)
    there = "was here already" if not pulled.fetched_bytes else output.size(pulled.size_bytes)
    output.hint(f"{pulled.id}: {len(pulled.files)} files, {there}")
    return output.print_line(pulled.path)


class _PullProgress:
    """Shows the bytes of a pull: on a terminal as they come, else a line for each tenth."""

    def __init__(self, model: str, show: Callable[[str], None]) -> None:
        self._model = model
        self._show = show
        self._tenth = 0

    def __call__(self, done: int, total: int) -> None:
        text = f"pulling {self._model}: {output.size(done)} of {output.size(total)}, {100 * done // max(total, 1)} %"
        self._show(text)
        tenth = 10 * done // max(total, 1)
        if tenth > self._tenth and not output.err().is_terminal:
            output.message(text)
        self._tenth = max(tenth, self._tenth)


@make_app.command("tiny-qwen3")
def make_tiny_qwen3(
    name: Annotated[str, typer.Option(help="The model's id on the cluster.")] = "tiny-qwen3",
    out: Annotated[Path | None, typer.Option(help="A directory of your own instead.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the random weights.")] = 0,
    hidden: Annotated[int, typer.Option(min=8, help="Width.")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Depth.")] = 2,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 4,
    kv_heads: Annotated[int, typer.Option(min=1, help="Key and value heads.")] = 2,
    head_dim: Annotated[int, typer.Option(min=2, help="Width of a head.")] = 16,
    intermediate: Annotated[int | None, typer.Option(help="Width of the MLP; 3 × hidden.")] = None,
    context: Annotated[int, typer.Option(min=64, help="Positions.")] = 4096,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a model that exists already.")] = False,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Make a tiny real Qwen3 with its own tokenizer; it learns arithmetic in a minute. Prints its path."""
    from synth.local.tiny_models.qwen3 import make_tiny_qwen3

    make = partial(
        make_tiny_qwen3,
        seed=seed,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        context=context,
    )
    _make(make, out or data / "models" / name, replace=replace, fmt=fmt)


@make_app.command("tiny-qwen3-vl")
def make_tiny_qwen3_vl(
    name: Annotated[str, typer.Option(help="The model's id on the cluster.")] = "tiny-qwen3-vl",
    out: Annotated[Path | None, typer.Option(help="A directory of your own instead.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the random weights.")] = 0,
    hidden: Annotated[int, typer.Option(min=8, help="Width, of the vision tower too.")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Depth, of the vision tower too.")] = 2,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 4,
    kv_heads: Annotated[int, typer.Option(min=1, help="Key and value heads.")] = 2,
    head_dim: Annotated[int, typer.Option(min=8, help="Width of a head.")] = 16,
    context: Annotated[int, typer.Option(min=64, help="Positions.")] = 4096,
    max_side: Annotated[
        int, typer.Option(min=32, help="Pixels: a larger image is shrunk to this square's area.")
    ] = 128,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Use the template of a Thinking variant, which always thinks.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a model that exists already.")] = False,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Make a tiny real Qwen3-VL with its own tokenizer and image processor. Prints its path."""
    from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl

    make = partial(
        make_tiny_qwen3_vl,
        seed=seed,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        max_side=max_side,
        thinking=thinking,
    )
    _make(make, out or data / "models" / name, replace=replace, fmt=fmt)


def _make(make: Callable[[Path], MadeModel], target: Path, *, replace: bool, fmt: Format) -> None:
    with output.status(f"making {target}"):
        anew = replace and (target / "config.json").exists()
        made = make(target.with_name(f".{target.name}.new") if anew else target)
        if anew:
            shutil.rmtree(target)
            target.with_name(f".{target.name}.new").rename(target)
    if fmt is Format.JSON:
        output.print_json({"path": str(target), "parameters": made.parameters, "vocab": made.vocab})
        return
    output.hint(f"{made.parameters:,} parameters, {made.vocab} tokens")
    output.print_line(str(target))


def _facts(spec: ModelSpec) -> dict[str, object]:
    fields = ("id", "family", "parameters", "active_parameters", "experimental", "thinking", "vision", "lora_targets")
    return {name: getattr(spec, name) for name in fields}
