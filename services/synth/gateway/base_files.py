"""The files of base models in folders of this machine, with digests that are computed once."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from synth.api.schemas import ModelFile
from synth.errors import Problem
from synth.gateway.errors import ApiError
from synth.models import ModelSpec


class BaseFiles:
    """The files of bases. A digest is kept until its file changes."""

    def __init__(self) -> None:
        self._digests: dict[Path, tuple[tuple[int, int], str]] = {}
        # One file is read at a time, so a second request for it waits for the same digest.
        self._reading = asyncio.Lock()

    async def list(self, spec: ModelSpec) -> list[ModelFile]:
        """List the name, size and sha256 of each file. Raises a 409 for a base without own files on this machine."""
        return [
            ModelFile(name=path.name, size=path.stat().st_size, sha256=await self._digest(path))
            for path in _paths(spec)
        ]

    def path(self, spec: ModelSpec, name: str) -> Path | None:
        """Return the path of a file; None if the base has no such file."""
        return next((path for path in _paths(spec) if path.name == name), None)

    async def _digest(self, path: Path) -> str:
        async with self._reading:
            stat = path.stat()
            version = (stat.st_size, stat.st_mtime_ns)
            known = self._digests.get(path)
            if known is None or known[0] != version:
                known = self._digests[path] = (version, await asyncio.to_thread(_sha256, path))
            return known[1]


def _paths(spec: ModelSpec) -> list[Path]:
    if spec.path is None or spec.stand_in is not None:
        what = f"{spec.base!r} has no weights on this cluster"
        fix = "`synthctl models pull` fetches them from the model hub"
        if spec.stand_in:
            what, fix = f"{what}; {spec.stand_in!r} stands in for it", f"download {spec.stand_in!r}"
        problem = Problem(what=what, expected="a base whose files are here", fix=fix, where="model")
        raise ApiError(409, problem.text(), param="model", code="no_weights", problems=[problem])
    return sorted(p for p in Path(spec.path).iterdir() if p.is_file() and not p.name.startswith("."))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
