"""Where a model is, by the log."""

from __future__ import annotations

import pytest

from synth.bus.history.job_log import start_attempt
from synth.bus.history.model_refs import find_model
from synth.bus.publish import Publisher
from synth.errors import UserError
from synth.events import BlobExpired, BlobRef, CheckpointSaved, ModelRef
from synth.ids import new_org_id
from synth.models import Registry
from tests.service.bus.test_job_log import verified_job


async def test_a_checkpoint_is_a_model_until_it_expires(bus_as, tmp_path):
    org, job = await verified_job(bus_as)
    bus, trainer, registry = await bus_as("verifier"), await bus_as("trainer"), Registry(tmp_path)
    _, fence = await start_attempt(trainer, org, job, worker="w")
    assert fence is not None
    publisher = Publisher(trainer)

    def tree(k: int) -> BlobRef:
        return BlobRef(uri=f"blob://{job}/{k}", size=1, sha256="0")

    for k in (1, 2, 3):
        model = ModelRef(id=f"fft:tiny-qwen3:{job}:step_{k}", tree=tree(k))
        saved = CheckpointSaved(step=k, version=k, attempt=1, tree=tree(k), size=1, model=model)
        await publisher.fenced(saved, fence=fence, id=str(k))
    await publisher.fenced(BlobExpired(uris=["blob://else", tree(1).uri]), fence=fence, id="1")
    assert (await find_model(bus, org, f"ft:tiny-qwen3:{job}:step_2", registry)).tree == tree(2)
    with pytest.raises(UserError) as gone:
        await find_model(bus, org, f"fft:tiny-qwen3:{job}:step_1", registry)
    there = f"fft:tiny-qwen3:{job}:step_3, fft:tiny-qwen3:{job}:step_2"
    assert gone.value.problems[0].what.endswith("step_1' has expired")
    assert gone.value.problems[0].expected == f"what its job keeps: {there}"
    with pytest.raises(UserError, match=r"step_7' was not saved.*did you mean .*step_3'"):
        await find_model(bus, org, f"fft:tiny-qwen3:{job}:step_7", registry)
    with pytest.raises(UserError, match="was not saved"):
        await find_model(bus, new_org_id(), f"fft:tiny-qwen3:{job}:step_2", registry)
