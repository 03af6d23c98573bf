"""Downloading a model: each file whole, checked, and only then under its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from synth.api.schemas import ModelFile
from synth.cli.tui import output
from synth.client import Client
from synth.client.models import path_inside
from synth.console.errors import CliError

#: The file in which peft looks for the base of an adapter.
_ADAPTER = "adapter_config.json"
_BASE = "base_model_name_or_path"


def download_model(client: Client, model: str, target: Path) -> list[Path]:
    """Download a model's files into a directory; a file with the right digest is kept. Returns every path."""
    with output.status(f"downloading {model}") as status:

        def show(file: ModelFile, number: int, of: int) -> None:
            status(f"{file.name} ({output.size(file.size)}), {number} of {of}")

        return client.models.download(model, target, on_file=show)


def locate_base(client: Client, target: Path, models: Path, *, download: bool) -> None:
    """Write the base's path into a downloaded adapter, so that peft loads both; if it is not here, print how.

    models: the models folder of this machine's cluster. download: whether the base is downloaded beside the adapter.
    An id of the model hub stays: it names the same model on every machine.
    """
    path = target / _ADAPTER
    config: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    if not (base := config.get(_BASE)):
        return
    folder = target / "base" if download else path_inside(models, base)
    if download:
        download_model(client, base, folder)
        if (folder / _ADAPTER).is_file():
            raise CliError(f"the base, {base}, is an adapter itself, and peft loads no adapter on another")
    elif "/" in base and ":" not in base:
        return
    elif not folder.is_dir():
        output.hint(f"its base is {base}: --with-base downloads it too, and lets peft load both")
        return
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(config | {_BASE: str(folder.resolve())}, indent=2, sort_keys=True))
    part.rename(path)
