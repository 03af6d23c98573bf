"""Models: list, read, delete, and download with a check of every digest."""

from __future__ import annotations

import hashlib
from builtins import list as List
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from synth.api.schemas import Model, ModelFile
from synth.client.api import LONG_TIMEOUT_S, Api
from synth.client.files import fetch
from synth.client.transports import Blocking, blocking
from synth.console.errors import CliError


class AsyncModels:
    """The models that can be served or trained from: the cluster's bases, and the results of jobs."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def list(self) -> List[Model]:
        """List every model."""
        return await self._api.list_of("/models", Model)

    async def get(self, model: str) -> Model:
        """Read one model: a base of the cluster, or one of the organisation's own. Raises `NotFound`."""
        return await self._api.request("GET", _path(model), Model)

    async def delete(self, model: str) -> None:
        """Delete a model that a job made. A second call changes nothing."""
        await self._api.send("DELETE", _path(model))

    async def files(self, model: str) -> List[ModelFile]:
        """List the files of a model."""
        return await self._api.list_of("/model-files", ModelFile, params={"model": model}, usual=LONG_TIMEOUT_S)

    async def download(
        self,
        model: str,
        folder: str | Path,
        *,
        on_file: Callable[[ModelFile, int, int], None] = lambda file, number, of: None,
    ) -> List[Path]:
        """Download a model's files into a folder, check their digests, and return their paths.

        A file that is there with the right digest is kept. on_file: called before each file, with its number from 1
        and the number of all.
        """
        files = await self.files(model)
        if not files:
            raise CliError(f"{model} has no files to download")
        paths: List[Path] = []
        for number, file in enumerate(files, start=1):
            path = path_inside(Path(folder), file.name)
            on_file(file, number, len(files))
            if not _is_there(path, file):
                params = {"model": model, "name": file.name}
                await fetch(self._api, "/model-files/content", params, path, sha256=file.sha256, name=file.name)
            paths.append(path)
        return paths


class Models(Blocking):
    """The models that can be served or trained from: the cluster's bases, and the results of jobs."""

    list = blocking(AsyncModels.list)
    get = blocking(AsyncModels.get)
    delete = blocking(AsyncModels.delete)
    files = blocking(AsyncModels.files)
    download = blocking(AsyncModels.download)


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file below a folder. Raises `CliError` for a name that leads out of it."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise CliError(f"the backend names a file {name!r}, which is no name inside a directory")
    return folder.joinpath(*pure.parts)


def _is_there(path: Path, file: ModelFile) -> bool:
    if not file.sha256 or not path.is_file() or path.stat().st_size != file.size:
        return False
    with path.open("rb") as body:
        return hashlib.file_digest(body, "sha256").hexdigest() == file.sha256


def _path(model: str) -> str:
    return f"/models/{quote(model, safe='/')}"
