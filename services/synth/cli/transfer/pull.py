"""Fetches a base model into the models folder: from the model hub, from the hub's cache here, or from a folder.

Invariants: a model is in the models folder complete or not at all: it is downloaded into a hidden folder beside it,
where a later pull continues, checked against the hub's sizes and digests, and then moved. Only files that the
services read are fetched: weights in safetensors, the tokenizer, the configuration.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import msgspec

from synth.console.errors import CliError, NotFound, Unreachable, UsageProblem
from synth.models.architectures import fault_of_config
from synth.models.table import canonical
from synth.runtime.lines import split_lines

#: The files that the services read, in the model's own folder; deeper folders hold other formats.
WANTED = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json",
    "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
#: The same weights once more, in another layout.
_DOUBLES = ("consolidated*.safetensors",)
_SHOW_EVERY_S = 0.5

Show = Callable[[int, int], None]
"""Called with the downloaded bytes, and the bytes of the whole model."""


class PulledModel(msgspec.Struct, kw_only=True):
    """A model that is in the models folder. fetched_bytes: 0 if it was there already."""

    id: str
    path: str
    files: list[str]
    size_bytes: int
    fetched_bytes: int


@dataclass(frozen=True)
class RemoteFile:
    """A file of a model on the hub. sha256: None of small ones, which the hub keeps otherwise."""

    name: str
    size: int
    sha256: str | None


def is_wanted(name: str) -> bool:
    """Return whether the services read this file of a model repository."""
    return any(fnmatch(name, p) for p in WANTED) and not any(fnmatch(name, p) for p in _DOUBLES) and "/" not in name


def pull_folder(source: Path, models_dir: Path, *, id: str) -> PulledModel:
    """Copy a local model directory, as hard links where possible. Raises `UsageProblem` for one that is none."""
    source = source.expanduser()
    names = sorted(p.name for p in source.iterdir() if p.is_file() and is_wanted(p.name)) if source.is_dir() else []
    _check_model(source, names, where=str(source))
    target = models_dir / id
    if target.exists():
        return _already(id, target)
    files = [RemoteFile(name, (source / name).stat().st_size, None) for name in names]
    partial = _partial(models_dir, id)
    _check_room(models_dir, sum(f.size for f in files))
    for name in names:
        _link_or_copy(source / name, partial / name)
    return _finish(id, partial, target, files, fetched=sum(f.size for f in files))


def pull_from_hub(model_id: str, models_dir: Path, *, revision: str | None, show: Show) -> PulledModel:
    """Fetch a model from the hub that HF_ENDPOINT names, with HF_TOKEN; offline (HF_HUB_OFFLINE) from the hub's cache.

    An interrupted pull continues. Raises `NotFound`, `Unreachable` or `CliError` with the fix.
    """
    id = canonical(model_id) or model_id
    target = models_dir / id
    if target.exists():
        return _already(id, target)
    hub = _import_hub()
    if hub.constants.HF_HUB_OFFLINE:
        return _pull_from_cache(hub, id, models_dir, revision)
    with _hub_errors(hub, id):
        info = hub.HfApi().model_info(id, revision=revision, files_metadata=True)
        files = [_remote_file(s) for s in info.siblings or [] if is_wanted(s.rfilename)]
        _check_names([f.name for f in files], id)
        partial = _partial(models_dir, id)
        total = sum(f.size for f in files)
        _check_room(models_dir, total - _size(partial))
        hub.utils.disable_progress_bars()
        # First the small file that decides whether the model is supported.
        hub.hf_hub_download(id, "config.json", revision=info.sha, local_dir=partial)
        _check_family(partial, id)
        with _shown(partial, total, show):
            names = [f.name for f in files]
            hub.snapshot_download(id, revision=info.sha, local_dir=partial, allow_patterns=names)
    for file in files:
        _check_bytes(partial / file.name, file)
    return _finish(id, partial, target, files, fetched=total)


def _pull_from_cache(hub: Any, id: str, models_dir: Path, revision: str | None) -> PulledModel:
    try:
        cached = Path(hub.snapshot_download(id, revision=revision, local_files_only=True))
    except (hub.errors.LocalEntryNotFoundError, OSError, ValueError) as error:
        raise Unreachable(
            f"{id} is not in the hub's cache here, and HF_HUB_OFFLINE is set",
            fix="unset HF_HUB_OFFLINE; or copy the model's folder here and pull that: synthctl models pull FOLDER",
            where=hub.constants.HF_HUB_CACHE,
        ) from error
    return pull_folder(cached, models_dir, id=id)


def _import_hub() -> Any:
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.utils

    return huggingface_hub


def _remote_file(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    return RemoteFile(sibling.rfilename, sibling.size or 0, None if lfs is None else lfs.sha256)


def _check_names(names: list[str], id: str) -> None:
    if "config.json" not in names:
        raise UsageProblem(f"{id} holds no model", expected="config.json, a tokenizer and safetensors files", where=id)
    if not any(name.endswith(".safetensors") for name in names):
        raise UsageProblem(
            f"{id} has no weights in safetensors",
            expected="*.safetensors",
            fix="convert them, or choose a model that has them",
            where=id,
        )


def _check_model(folder: Path, names: list[str], *, where: str) -> None:
    """Raises `UsageProblem` unless the folder holds a model that runs here, every shard of its index included."""
    _check_names(names, where)
    _check_family(folder, where)
    for index in (name for name in names if name.endswith(".index.json")):
        mapped = cast(dict[str, str], json.loads((folder / index).read_bytes()).get("weight_map", {}))
        if missing := sorted(set(mapped.values()) - set(names)):
            raise UsageProblem(
                f"{len(missing)} of its weight files are missing, first {missing[0]}",
                expected=f"every file that {index} names",
                where=where,
            )


def _check_family(folder: Path, where: str) -> None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except ValueError as error:
        raise UsageProblem("config.json is not a JSON object", where=where) from error
    if not isinstance(config, dict):
        raise UsageProblem("config.json is not a JSON object", where=where)
    if (fault := fault_of_config(where, cast(dict[str, Any], config), where)) is not None:
        raise UsageProblem(fault.what, expected=fault.expected, fix=fault.fix, where=where)


def _check_room(models_dir: Path, needed: int) -> None:
    models_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(models_dir).free
    if needed > free:
        raise CliError(
            f"{needed / 1e9:.1f} GB are still to come, and {free / 1e9:.1f} GB are free",
            expected="room for the whole model",
            fix="free some, or name another folder with --data",
            where=str(models_dir),
        )


def _check_bytes(path: Path, file: RemoteFile) -> None:
    if path.stat().st_size == file.size:
        if file.sha256 is None:
            return
        with path.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256:
                return
    # The next pull downloads it again.
    path.unlink()
    raise CliError(
        f"{file.name} differs from the hub's file, and was deleted",
        expected=f"{file.size} bytes" + (f" with sha256 {file.sha256}" if file.sha256 else ""),
        fix="pull again",
        where=str(path),
    )


def _partial(models_dir: Path, id: str) -> Path:
    folder = models_dir / f".pull-{id.replace('/', '--')}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _finish(id: str, partial: Path, target: Path, files: list[RemoteFile], *, fetched: int) -> PulledModel:
    _check_model(partial, [f.name for f in files], where=id)
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial.rename(target)
    size = sum(f.size for f in files)
    return PulledModel(
        id=id, path=str(target), files=sorted(f.name for f in files), size_bytes=size, fetched_bytes=fetched
    )


def _already(id: str, target: Path) -> PulledModel:
    if not (target / "config.json").is_file():
        raise UsageProblem("this is there, and no model", fix="move it away", where=str(target))
    names = sorted(p.name for p in target.iterdir() if p.is_file())
    return PulledModel(id=id, path=str(target), files=names, size_bytes=_size(target), fetched_bytes=0)


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # it was just finished, and moved
    return size


@contextmanager
def _shown(partial: Path, total: int, show: Show) -> Iterator[None]:
    """Show how much is there, again and again."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_SHOW_EVERY_S):
            show(min(_size(partial), total), total)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
        show(total, total)
    finally:
        over.set()


@contextmanager
def _hub_errors(hub: Any, id: str) -> Iterator[None]:
    """Raise the hub's errors in our words."""
    endpoint = hub.constants.ENDPOINT
    errors = hub.errors
    # The base class of the HTTP library that the hub's client uses: the class of every connection error.
    http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except errors.GatedRepoError as error:
        fix = f"accept its terms at {endpoint}/{id}, and set HF_TOKEN to a token of that account"
        raise CliError(f"{id} is gated, and this token may not read it", fix=fix, where=id) from error
    except errors.RevisionNotFoundError as error:
        raise NotFound(f"{id} has no such revision", fix="leave --revision out", where="--revision") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        fix = "`synthctl models known` lists the ids; a private model needs HF_TOKEN"
        raise NotFound(f"there is no model {id!r} at {endpoint}", fix=fix, where=id) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise Unreachable(f"the hub does not give {id} ({_first_line(error)})", fix=_RETRY, where=endpoint) from error
    except (http_error, OSError) as error:
        # A file of this machine that cannot be written is no fault of the hub's.
        if isinstance(error, OSError) and error.filename:
            raise
        raise Unreachable(f"the hub does not answer ({_first_line(error)})", fix=_RETRY, where=endpoint) from error


_RETRY = "pull again, which continues this pull; HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 uses the cache"


def _first_line(error: Exception) -> str:
    return (split_lines(str(error).strip()) or [type(error).__name__])[0][:200]
