"""Makes the golden log of this version: `python -m tests.golden.make`, once for each release.

A cluster of its own runs a small job of each kind, and some that end otherwise; its log is written as lines, with the
cluster's folder left out of them, and with what it comes to. A log that is there is not made again: later versions must
read it as it is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
from nats.aio.msg import Msg
from pydantic import SecretStr

from synth.bus.connection import connect
from synth.bus.recorded import MSG_ID, SCHEMA, delivery_numbers
from synth.bus.replay import replay_messages
from synth.demo.math import dataset
from synth.runtime.settings import ServiceSettings
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import KEY, letters, served
from tests.golden.log import FOLDER, Line, recorded, result_of

DPO = (
    sft(steps=3)
    .replace('method = "sft"', 'method = "dpo"')
    .replace("[hyperparameters]", "[hyperparameters]\nbeta = 0.1")
)
EVALUATION = '[eval]\nmodel = "tiny-qwen3"\nseeds = "0-3"\nmax_tokens = 8\n'


def play(p: Platform) -> None:
    """Run the jobs, each to its end."""
    shell = p.shell
    rows = dataset.rows(64, seed=0)
    pairs = [
        {
            "messages": [{"role": "user", "content": f"{n} + {n}?"}],
            "chosen": [{"role": "assistant", "content": str(2 * n)}],
            "rejected": [{"role": "assistant", "content": "?"}],
        }
        for n in range(16)
    ]
    for name, lines in (("rows", rows), ("pairs", pairs)):
        (shell.folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    trained = p.succeeded(p.submit(sft(steps=4), "--dataset", "rows.jsonl", "--tag", "golden=yes"))["model"]
    p.succeeded(p.submit(DPO, "--dataset", "pairs.jsonl", "--model", trained))
    with served(letters()) as app:
        tail = "[evaluation]\nevery_n_iters = 1\ninstances = 2"
        p.succeeded(p.submit(rl(trained, app.url, iterations=2, tail=tail)))
        p.succeeded(p.submit(EVALUATION, "--task-url", app.url))
        endless = p.submit(rl("tiny-qwen3", app.url, iterations=1000))
        eventually(lambda: p.events(endless, "train.step") != [], timeout=120)
        p.client.jobs.pause(endless)
        eventually(lambda: p.job(endless)["state"] == "paused", timeout=120)
        p.client.jobs.resume(endless)
        eventually(lambda: len(p.events(endless, "job.started")) == 2, timeout=120)
        p.client.jobs.cancel(endless)
        assert p.outcome(endless)[1]["state"] == "cancelled"
    with served(letters(), fault=lambda n: "500") as app:
        assert p.outcome(p.submit(rl("tiny-qwen3", app.url)))[1]["state"] == "failed"
    rejected = {"config": sft(model="tiny-qwen9"), "config_name": "wrong.toml"}
    # The events of the second one, which is deleted, are erased.
    wrong = [p.api.post("/api/jobs", json=rejected).raise_for_status().json()["id"] for _ in range(2)]
    assert [p.outcome(job)[1]["state"] for job in wrong] == ["rejected", "rejected"]
    assert p.api.delete(f"/api/jobs/{wrong[1]}").is_success


async def dump(shell: Shell) -> list[Msg]:
    """Every message of the log."""
    state = shell.state()
    port = next(p["port"] for p in state["processes"] if p["name"] == "nats")
    password = SecretStr(state["users"]["bus"])
    settings = ServiceSettings(nats_url=f"nats://127.0.0.1:{port}", nats_user="bus", nats_password=password)
    bus = await connect(settings, "bus")
    try:
        return await replay_messages(bus.nc, [">"])
    finally:
        await bus.close()


def to_line(msg: Msg, folder: Path) -> str:
    """A message as a line. folder: the cluster's, which is nobody's business."""
    seq, _, nanoseconds, _ = delivery_numbers(msg.reply)
    headers = msg.headers or {}
    line = {
        "seq": seq,
        "time": datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(),
        "subject": msg.subject,
        "headers": {name: headers[name] for name in (MSG_ID, SCHEMA)},
        "data": json.loads(msg.data),
    }
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).replace(str(folder), "/cluster")


def manifests_of(shell: Shell) -> dict[str, str]:
    """The manifest of the last checkpoint of each kind of training, by the kind."""
    files = sorted((shell.folder / ".synth" / "blobs").rglob("resume/manifest.json"), key=lambda f: f.stat().st_mtime)
    texts = [file.read_text() for file in files]
    return {json.loads(text)["state"]["kind"]: text for text in texts}


def main() -> int:
    """Make the log of this version; returns an exit code."""
    out = FOLDER / version("synthctl")
    if (out / "events.jsonl").exists():
        sys.stderr.write(f"{out.name} has a log, which later versions must read as it is\n")
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        shell = Shell(Path(temporary))
        (shell.folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
        shell.ok("up", "--detach", "--port", str(shell.port))
        try:
            shell.make_model()
            play(Platform(shell))
            found = asyncio.run(dump(shell))
            manifests = manifests_of(shell)
        finally:
            shell.run("down")
        lines = [to_line(msg, shell.folder) for msg in found]
        read = [msgspec.json.decode(line, type=Line) for line in lines]
        result = result_of(recorded(read), shell.folder / "golden.db")
    out.mkdir(parents=True)
    (out / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (out / "result.json").write_text(json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    for kind, text in manifests.items():
        (out / f"checkpoint-{kind}.json").write_text(json.dumps(json.loads(text), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
