"""`synthctl backup` and `restore`: a copy of the embedded cluster, and a cluster from a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, Data
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.console.errors import ExitCode


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The backup's folder.")],
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Save the log, the keys and the blobs of the cluster on this machine; it may go on running.

    Again into the same folder copies only the blobs that are new, and replaces the backup. The folder holds the
    cluster's secrets. Base models are not in it. Exit 1 when the cluster itself lacks a blob that its log names: the
    rest is saved.
    """
    import asyncio

    from synth.local.cluster.backup import back_up

    manifest = asyncio.run(back_up(data.resolve(), folder.resolve(), report=output.hint))
    if fmt is Format.JSON:
        output.print_json(manifest)
    else:
        output.message(
            f"saved {sum(s.messages for s in manifest.streams)} messages and {manifest.blobs} blobs to {folder}"
        )
    for key in manifest.missing:
        output.warn(f"the cluster itself lacks {key}")
    if manifest.missing:
        raise typer.Exit(ExitCode.ERROR)


def restore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `synthctl backup` wrote.")],
    data: Data = DEFAULT_DATA,
    pools: Annotated[str, typer.Option(help="The pools of the cluster, as SYNTH_POOLS.")] = "default",
    fmt: Output = Format.TABLE,
) -> None:
    """Create a cluster from a backup, in an empty data folder; then start it with `synthctl up`.

    Every event keeps its number. Jobs that had not ended go on from their last checkpoint.
    """
    import asyncio

    from synth.local.cluster.backup import restore as restore_cluster

    names = tuple(pool.strip() for pool in pools.split(","))
    manifest = asyncio.run(restore_cluster(data.resolve(), folder.resolve(), pools=names, report=output.hint))
    if fmt is Format.JSON:
        output.print_json(manifest)
        return
    output.message(f"restored the backup of {manifest.taken_at:%Y-%m-%d %H:%M:%S} UTC")
    output.hint("start it: synthctl up")
