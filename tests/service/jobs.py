"""Jobs and files in the log, appended by the services that may, and waiting for what comes of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import aclosing
from pathlib import Path

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.job_log import append_decided
from synth.bus.publish import Fence, Publisher
from synth.bus.recorded import Recorded
from synth.bus.replay import follow
from synth.events import CollectionStarted, FileUploaded, JobCreated
from synth.ids import file_id_for

SFT = """
[algorithm]
type = "offline"
method = "sft"
variety = "fft"
[job]
model = "tiny-qwen3"
data = "file_1"
[hyperparameters]
total_steps = 5
"""
RL = """
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "http://127.0.0.1:9/"
[model]
base = "tiny-qwen3"
[rollout]
env_name = "math"
policy_name = "math"
[training]
num_epochs = 1
iterations_per_epoch = 2
batch_size = 2
group_size = 2
[data]
seeds = "0-9"
"""


def make_model_dir(cluster_dir: Path) -> Path:
    """The cluster's models folder, with a `tiny-qwen3` that has a config, a chat template and no weights."""
    folder = cluster_dir / "models" / "tiny-qwen3"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    # Whole as a file, and without a tensor.
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder.parent


async def wait_for(bus: Connection, subject: str, *types: str, timeout: float = 60, after: int = 0) -> Recorded:
    """The first event of one of these types on a subject, past or to come, behind sequence `after`."""
    async with (
        asyncio.timeout(timeout),
        aclosing(follow(bus, [subject], after=after, unreadable_too=True)) as events,
    ):
        async for event in events:
            if event.type in types:
                return event
    raise AssertionError("unreachable")


def unclaimed(org: str, job: str) -> Fence:
    """The fence of whoever appends what a collector does, to a job that no collector has claimed."""
    return Fence(org=org, job_id=job, attempt=0, seq=0, claim=CollectionStarted)


async def create(bus: Connection, org: str, job: str, config: str, *, name: str = "job.toml", **overrides) -> None:
    """Submit a job as the gateway does."""
    created = JobCreated(config=config, config_name=name, body_sha256="0", **overrides)
    await append_decided(bus, org, job, lambda _: created)


async def upload(bus: Connection, blobs: BlobStore, org: str, body: bytes, *, name: str = "train.jsonl") -> str:
    """Upload a file as the gateway does; returns its id."""
    sha256 = hashlib.sha256(body).hexdigest()
    blob = await blobs.put_bytes(f"orgs/{org}/files/{sha256}", body)
    id = file_id_for(org, sha256)  # type: ignore[arg-type]
    uploaded = FileUploaded(name=name, purpose="fine-tune", blob=blob)
    await Publisher(bus).once(uploaded, org=org, key=id, id=sha256)
    return id
