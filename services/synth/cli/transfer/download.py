"""Downloading a model: each file whole, checked, and only then under its name."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

from synth.api.schemas import ModelFile
from synth.cli.api.client import Client
from synth.cli.api.retries import backoff
from synth.cli.tui import output
from synth.console.errors import CliError, Unreachable

#: The file in which peft looks for the base of an adapter.
_ADAPTER = "adapter_config.json"
_BASE = "base_model_name_or_path"
_CHUNK = 1 << 20
_TRIES = 4


def download_model(client: Client, model: str, target: Path) -> list[Path]:
    """Download a model's files into a directory; a file with the right digest is kept. Returns every path."""
    files = client.model_files(model)
    if not files:
        raise CliError(f"{model} has no files to download")
    done: list[Path] = []
    with output.status(f"downloading {model}") as status:
        for i, file in enumerate(files, start=1):
            path = _inside(target, file.name)
            status(f"{file.name} ({output.size(file.size)}), {i} of {len(files)}")
            if not _is_there(path, file):
                _fetch(client, model, file, path)
            done.append(path)
    return done


def locate_base(client: Client, target: Path, models: Path, *, download: bool) -> None:
    """Write the base's path into a downloaded adapter, so that peft loads both; if it is not here, print how.

    models: the models folder of this machine's cluster. download: whether the base is downloaded beside the adapter.
    An id of the model hub stays: it names the same model on every machine.
    """
    path = target / _ADAPTER
    config: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    if not (base := config.get(_BASE)):
        return
    folder = target / "base" if download else _inside(models, base)
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


def _fetch(client: Client, model: str, file: ModelFile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    for attempt in range(_TRIES):
        digest = hashlib.sha256()
        try:
            with client.model_file(model, file.name) as reply, part.open("wb") as body:
                for chunk in reply.iter_bytes(_CHUNK):
                    body.write(chunk)
                    digest.update(chunk)
        except (httpx.TransportError, Unreachable):
            if attempt == _TRIES - 1:
                raise
            time.sleep(backoff(attempt))
            continue
        if not file.sha256 or digest.hexdigest() == file.sha256:
            part.rename(path)
            return
    part.unlink(missing_ok=True)
    raise CliError(
        f"{file.name} came with other bytes than it should have, {_TRIES} times", fix="try again", where=model
    )


def _is_there(path: Path, file: ModelFile) -> bool:
    if not file.sha256 or not path.is_file() or path.stat().st_size != file.size:
        return False
    with path.open("rb") as body:
        return hashlib.file_digest(body, "sha256").hexdigest() == file.sha256


def _inside(target: Path, name: str) -> Path:
    """Return the path of a file below the directory. Raises `CliError` for a name that leads out of it."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise CliError(f"the backend names a file {name!r}, which is no name inside a directory")
    return target.joinpath(*pure.parts)
