"""The routing of a call to its credential's training policy, or to a served model that its organisation may use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from synth.api.limits import MAX_MODEL_ID
from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.model_refs import find_model
from synth.bus.replay import replay
from synth.errors import Permanent, Problem, Transient, UserError
from synth.events import LoraShape, ModelRef, PolicyPublished
from synth.inference.api.prompt import ModelBinding
from synth.inference.api.requests import JobSampling
from synth.inference.engines.protocol import Engine
from synth.inference.serving.model_pool import ModelFiles, ModelPool, ServedModel
from synth.keys import Cid
from synth.models import Registry, parse_finetuned
from synth.weights.local_model import local_model, training_source


@dataclass(frozen=True)
class ServedJob:
    """A job whose policy this process serves: its source model, and the sampling that its rollouts must use.

    lora: the shape of the adapter that is trained; None: full weights. expects_new_weights: whether the policy is
    trained (RL). teacher: the teacher of a job that is distilled.
    """

    org: str
    job_id: str
    source: ModelRef
    sampling: JobSampling
    lora: LoraShape | None
    expects_new_weights: bool
    teacher: ModelRef | None = None


@dataclass
class ModelRouter:
    """An implementation of `synth.inference.api.app.Router`. jobs: the jobs whose newest policy is live, by job id."""

    bus: Connection
    blobs: BlobStore
    cache: Path
    registry: Registry
    jobs: dict[str, ServedJob] = field(default_factory=dict)
    _refs: dict[tuple[str, str], ModelRef] = field(default_factory=dict)
    _by_id: dict[str, ModelRef] = field(default_factory=dict)
    _model_pool: ModelPool | None = None

    def attach_model_pool(self, model_pool: ModelPool) -> None:
        """Serve from this pool, which finds its files through `files_of`."""
        self._model_pool = model_pool

    @property
    def model_pool(self) -> ModelPool:
        assert self._model_pool is not None
        return self._model_pool

    @asynccontextmanager
    async def for_rollout(self, cid: Cid) -> AsyncIterator[ModelBinding]:
        """Bind the live policy of the credential's job, or the version that the credential pins for an evaluation."""
        job = self._served(cid.job_id)
        if cid.version is not None:
            async with self.model_pool.lease(
                pinned_policy_name(cid.job_id, cid.version), org=job.org, pinned_from=cid.job_id
            ) as pinned:
                yield _binding(pinned, cid.job_id, job.org, job.sampling)
            return
        live = self.model_pool.training(cid.job_id)
        if live is None:
            raise Transient(f"the policy of {cid.job_id} is still loading", delay=1)
        yield _binding(live, cid.job_id, job.org, job.sampling)

    def org_of(self, cid: Cid) -> str:
        """Return the organisation of a credential's job. Raises `Transient` if its policy is not served here."""
        return self._served(cid.job_id).org

    @asynccontextmanager
    async def for_model(self, model: str, principal: str) -> AsyncIterator[ModelBinding]:
        """Bind a base model, or a fine-tuned one that the organisation owns."""
        ref = await self._find(principal, model)
        async with self._lease(ref, principal) as loaded:
            yield _binding(loaded, ref.id, principal, None)

    @asynccontextmanager
    async def for_teacher(self, job_id: str) -> AsyncIterator[Engine]:
        """Lease the teacher of a job whose policy this process serves."""
        job = self.jobs.get(job_id)
        if job is None:
            raise Transient(f"the policy of {job_id} is not served here, nor its teacher", delay=1)
        if job.teacher is None:
            raise UserError(f"{job_id} has no teacher", expected="a job with [distillation]", where="job")
        async with self._lease(job.teacher, job.org) as loaded:
            yield loaded.engine

    @asynccontextmanager
    async def hold_teacher(self, job: ServedJob) -> AsyncIterator[ServedModel | None]:
        """Keep the teacher of a job loaded; None for a job without one. Raises as `ModelPool.lease` does."""
        if job.teacher is None:
            yield None
            return
        async with self._lease(job.teacher, job.org) as loaded:
            if self._by_id.get(job.teacher.id) != job.teacher:
                # A chat still uses the model that was installed under this id before.
                raise Transient(
                    f"other weights of {job.teacher.id!r}, the teacher of {job.job_id}, are in use", delay=5
                )
            yield loaded

    async def check_teacher(self, job: ServedJob) -> None:
        """Raise `Permanent` for a teacher that reads other tokens than the policy, before either is loaded."""
        if job.teacher is None:
            return
        policy = await self.source_of(job)
        teacher = await local_model(job.teacher, self.blobs, self.cache, hub=self.registry.hub)
        await asyncio.to_thread(check_same_tokenizer, policy.model_dir, teacher.model, teacher_id=job.teacher.id)

    @asynccontextmanager
    async def _lease(self, ref: ModelRef, org: str) -> AsyncIterator[ServedModel]:
        # The id may name other weights now: the base was installed, or another model stands in for it.
        if self._by_id.get(ref.id) != ref and await self.model_pool.try_unload(ref.id):
            self._by_id[ref.id] = ref
        async with self.model_pool.lease(ref.id, org=org) as loaded:
            yield loaded

    async def models(self, principal: str) -> list[str]:
        """Return the base models of this cluster; a gateway adds the organisation's own models."""
        return [spec.id for spec in self.registry.runnable()]

    def served(self) -> list[str]:
        """Return the models that can be called now; a training policy only once it serves its job's newest version."""
        return [n for n in self.model_pool.names() if self.model_pool.training(n) is None or n in self.jobs]

    async def files_of(self, name: str) -> ModelFiles:
        """Return the files of a model: a pinned version of a served job, or a model that `for_model` has found."""
        job_id, _, version = name.partition("@v")
        if version and job_id in self.jobs:
            return await self._pinned_files(self.jobs[job_id], int(version))
        result = await local_model(self._by_id[name], self.blobs, self.cache, hub=self.registry.hub)
        return ModelFiles(result.model, result.adapter, lora=self._by_id[name].lora)

    async def source_of(self, job: ServedJob) -> ModelFiles:
        """Return the files that a job's policy starts from: the same files that its trainer loads."""
        if job.expects_new_weights:
            result = await training_source(job.source, job.lora, self.blobs, self.cache, hub=self.registry.hub)
            return ModelFiles(result.model, result.adapter, lora=job.lora, expects_new_weights=True)
        result = await local_model(job.source, self.blobs, self.cache, hub=self.registry.hub)
        return ModelFiles(result.model, result.adapter, lora=job.source.lora)

    def _served(self, job_id: str) -> ServedJob:
        job = self.jobs.get(job_id)
        if job is None:
            raise Transient(f"the policy of {job_id} is not served here", delay=1)
        return job

    async def _find(self, org: str, model: str) -> ModelRef:
        if not model:
            raise UserError("no model was named", expected="a model id", where="model")
        if len(model) > MAX_MODEL_ID:
            what = f"the model's id has {len(model):,} characters"
            raise UserError(what, expected=f"at most {MAX_MODEL_ID}", where="model")
        known, named = self._refs.get((org, model)), parse_finetuned(model)
        # A base may have been installed again. A checkpoint may have expired, which matters only if it is not loaded. A
        # fine-tuned model never changes.
        lasting = named is not None and named.checkpoint is None
        if known is None or not (lasting or (named is not None and known.id in self.model_pool.names())):
            try:
                known = await find_model(self.bus, org, model, self.registry)
            except UserError as error:
                raise UserError([_at_model(p) for p in error.problems]) from error
            self._refs[org, model] = known
        return known

    async def _pinned_files(self, job: ServedJob, version: int) -> ModelFiles:
        source = replace(await self.source_of(job), expects_new_weights=False)
        if version == 0:
            return source
        published = await replay(self.bus, [f"policy.published.{job.org}.{job.job_id}"])
        results = [p.event for p in published if isinstance(p.event, PolicyPublished) and p.event.version == version]
        if not results:
            raise Transient(f"policy version {version} of {job.job_id} is not published yet", delay=1)
        weights = await self.blobs.fetch(results[-1].weights, self.cache / f"{job.job_id}-v{version}.safetensors")
        return replace(
            source,
            weights=weights,
            version=version,
            weights_are_copy=self.blobs.root is None,
            canary=results[-1].canary,
        )


def pinned_policy_name(job_id: str, version: int) -> str:
    """Return the name under which one version of a job's policy is held for an evaluation."""
    return f"{job_id}@v{version}"


def _binding(loaded: ServedModel, model: str, org: str, sampling: JobSampling | None) -> ModelBinding:
    return ModelBinding(engine=loaded.engine, chat=loaded.chat, model=model, org=org, sampling=sampling)


def _at_model(problem: Problem) -> Problem:
    return Problem(what=problem.what, expected=problem.expected, fix=problem.fix, where="model")


def check_same_tokenizer(policy: Path, teacher: Path, *, teacher_id: str) -> None:
    """Raise `Permanent` unless each token id means the same text to both models. policy, teacher: their folders.

    The ids of all tokens are compared, including tokens that were added to the vocabulary, but not how text is split
    into tokens: a teacher scores tokens that were sampled.
    """
    ours, theirs = _tokens(policy), _tokens(teacher)
    if ours == theirs:
        return
    ids = {token_id: token for token, token_id in theirs.items()}
    for token, token_id in sorted(ours.items(), key=lambda found: found[1]):
        if ids.get(token_id) != token:
            there = f"{ids[token_id]!r} to the teacher" if token_id in ids else "unknown to the teacher"
            what = f"token {token_id} is {token!r} to the policy and {there}"
            break
    else:
        what = f"the teacher has {len(theirs)} tokens and the policy {len(ours)}"
    raise Permanent(
        f"the teacher {teacher_id!r} has another tokenizer than the policy: {what}; expected a teacher with "
        "the policy's tokenizer, such as a larger model of its family; change [distillation] teacher"
    )


def _tokens(model_dir: Path) -> dict[str, int]:
    """Return the ids of a model's tokens by their text."""
    file = model_dir / "tokenizer.json"
    if not file.is_file():
        raise Permanent(
            f"the model in {model_dir.name!r} has no tokenizer.json, which teacher and policy are compared by"
        )
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(file.read_text(encoding="utf-8")).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises its own, which is a plain Exception
        raise Permanent(f"the tokenizer.json of {model_dir.name!r} cannot be read: {error}") from error
