"""Routes of models: lists, single models, and their files."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import FileResponse, Response

from synth.api.limits import MAX_MODELS
from synth.api.schemas import Deleted, Job, Model, ModelFile
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem, UserError
from synth.events import RESUME_FOLDER, BlobRef
from synth.gateway.api.job_lists import find_jobs
from synth.gateway.api.native.files import blob_response
from synth.gateway.api.openapi import json_response, list_response, returns, returns_list
from synth.gateway.api.parameters import PageLimit
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.delete import delete_model
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError, not_found
from synth.gateway.read_model.artifacts import CheckpointRow, ModelRow
from synth.gateway.read_model.filters import JobFilter
from synth.models import FineTunedId, ModelSpec, parse_finetuned

router = APIRouter(tags=["models"])

ModelId = Annotated[str, Query(alias="model", description="A model's id")]


@router.get("/models", summary="Models: yours, newest first, then the bases", responses=returns_list(Model))
async def list_models(
    caller: CurrentKey,
    gateway: GatewayDep,
    base_model: Annotated[str | None, Query(description="Only those made from this base")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_MODELS)] = MAX_MODELS,
    after: Annotated[str | None, Query(description="Go on after this model's id")] = None,
) -> Response:
    """List the models that your jobs made, and the base models of the cluster."""
    bases = list_base_models(gateway) if base_model is None else []
    ids = [base.id for base in bases]
    if after in ids:
        models, more = bases[ids.index(after) + 1 :], False
    else:
        models, more = list_made_models(gateway, caller.org, limit=limit, after=after, base=base_model)
        models += [] if more else bases
    return list_response(models[:limit], more=more or len(models) > limit)


@router.get("/models/{model_id:path}/jobs", summary="The jobs that made or use a model", responses=returns_list(Job))
async def jobs_of_model(
    model_id: str,
    caller: CurrentKey,
    gateway: GatewayDep,
    limit: PageLimit = 20,
    after: Annotated[str | None, Query(description="Go on after this job's id")] = None,
) -> Response:
    """List the job that made a model and the jobs that train or evaluate it, newest first."""
    model = find_model(gateway, caller.org, model_id)
    rows, more = await find_jobs(gateway, caller.org, limit=limit, wanted=JobFilter(uses=[model.id]), after=after)
    return list_response([gateway.queue.show(row) for row in rows], more=more)


@router.get("/models/{model_id:path}", summary="One model", responses=returns(Model))
async def get_model(model_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a model or a checkpoint; its id may contain slashes and colons."""
    return json_response(find_model(gateway, caller.org, model_id))


@router.delete("/models/{model_id:path}", summary="Delete a model that a job made", responses=returns(Deleted))
async def delete(model_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Delete a model at once, or a checkpoint of a job that has ended. Repeating the request changes nothing.

    Its files are removed when no job that was verified with it runs, and no existing model is an adapter on it. The
    request is refused while the model's job runs.
    """
    return json_response(Deleted(id=await remove_model(gateway, caller, model_id), object="model"))


@router.get("/model-files", summary="The files of a model", responses=returns_list(ModelFile))
async def model_files(model: ModelId, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List the name, size and sha256 of each file. The first request for a base reads its files to hash them."""
    named = parse_finetuned(model)
    if named is None:
        return list_response(await gateway.base_files.list(_find_base_here(gateway, model)))
    files = await _files(gateway, caller.org, model, named)
    return list_response(
        [ModelFile(name=name, size=ref.size, sha256=ref.sha256) for name, ref in sorted(files.items())]
    )


@router.get("/model-files/content", summary="One file of a model")
async def model_file(model: ModelId, name: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return the bytes of a file."""
    named = parse_finetuned(model)
    if named is None:
        path = gateway.base_files.path(_find_base_here(gateway, model), name)
        if path is None:
            raise not_found("model", f"{model} has no file {name}")
        return FileResponse(path, media_type="application/octet-stream")
    ref = (await _files(gateway, caller.org, model, named)).get(name)
    if ref is None:
        raise not_found("model", f"{model} has no file {name}")
    return await blob_response(gateway.blobs, ref, name)


def list_made_models(
    gateway: Gateway,
    org: str,
    *,
    limit: int,
    after: str | None = None,
    base: str | None = None,
    prefix: str | None = None,
) -> tuple[list[Model], bool]:
    """Return the models that an organisation's jobs made, newest first, and whether there are more.

    after: only models that are older than this one. Raises a 404.
    """
    last = gateway.read_model.model(org, after) if after else None
    if after and last is None:
        raise not_found("model", after)
    before = last.created_seq if last else None
    rows = gateway.read_model.models(org, limit=limit + 1, before=before, base=base, prefix=prefix)
    return [row.model for row in rows[:limit]], len(rows) > limit


def list_base_models(gateway: Gateway) -> list[Model]:
    """Return the base models of the cluster."""
    return [_base_model(spec) for spec in gateway.registry.runnable()]


def find_model(gateway: Gateway, org: str, id: str) -> Model:
    """Find the model, checkpoint or base with this id; `ft:` matches every method of training. Raises a 404."""
    named = parse_finetuned(id)
    if named is None:
        return _base_model(_find_base(gateway, id))
    return _find_made(gateway, org, id, named).model


def _find_made(gateway: Gateway, org: str, id: str, named: FineTunedId) -> ModelRow | CheckpointRow:
    """Find the model or checkpoint with this id, in any spelling. Raises a 404."""
    for spelled in _spellings(named):
        row = gateway.read_model.model(org, spelled) or gateway.read_model.checkpoint(org, spelled)
        if row is not None:
            return row
    raise not_found("model", id)


def _find_base(gateway: Gateway, id: str) -> ModelSpec:
    """Find the base with this id that the cluster can run. Raises a 404."""
    try:
        spec = gateway.registry.find(id)
        gateway.registry.weights(spec)
    except UserError as error:
        raise not_found("model", id) from error
    return spec


def _find_base_here(gateway: Gateway, id: str) -> ModelSpec:
    """Find the base with this id, which may be a vision model. Raises a 404."""
    try:
        return gateway.registry.find(id)
    except UserError as error:
        raise not_found("model", id) from error


def is_deleted_model(gateway: Gateway, org: str, named: FineTunedId | None) -> bool:
    """Return whether this fine-tuned model existed and was deleted: a replica may still hold it."""
    return named is not None and any(gateway.read_model.is_deleted(org, id) for id in _spellings(named))


def _spellings(named: FineTunedId) -> list[str]:
    if named.prefix != "ft":
        return [str(named)]
    return [str(replace(named, prefix=prefix)) for prefix in ("fft", "peft", "qft", "rl")]


async def remove_model(gateway: Gateway, caller: ApiKey, id: str) -> str:
    """Delete the model with this id, in any spelling, and return its full id. Raises a 404, a 409."""
    named = parse_finetuned(id)
    deleted = is_deleted_model(gateway, caller.org, named)
    full = id if deleted else find_model(gateway, caller.org, id).id
    if parse_finetuned(full) is None:
        problem = Problem(
            what=f"{full!r} is a base model of the cluster",
            expected="a model that a job of yours made",
            fix="who runs the cluster removes its folder from the models",
            where="model",
        )
        raise ApiError(409, problem.text(), param="model", code="model_kept", problems=[problem])
    if not deleted:
        await delete_model(gateway, caller, full)
    return full


def _base_model(spec: ModelSpec) -> Model:
    return Model(id=spec.id, kind="base", stand_in=spec.stand_in)


async def _files(gateway: Gateway, org: str, id: str, named: FineTunedId) -> dict[str, BlobRef]:
    row = _find_made(gateway, org, id, named)
    if row.tree is None:
        raise not_found("model", id)
    files = (await gateway.blobs.manifest(row.tree)).files
    return {name: ref for name, ref in files.items() if not name.startswith(f"{RESUME_FOLDER}/")}
