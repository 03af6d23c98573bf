"""`synth.client` on a running cluster: the page that shows it, and both clients over a link that breaks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from synth.client import AsyncClient, Client, FailedJob, NotAuthorised, NotFound, UsageProblem
from synth.runtime.environment.env_file import read_env_file
from tests.docs.blocks import ROOT, blocks_of
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import KEY, Served
from tests.soak.tcp_proxy import Link, TcpProxy
from tests.unit.cli.backend import SETTINGS

pytestmark = pytest.mark.timeout(600)

PAGE = ROOT / "docs" / "python.md"


@pytest.fixture
def folder(platform: Platform, rows: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the key of the cluster and the rows; a client gets nothing else."""
    monkeypatch.chdir(platform.shell.folder)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return platform.shell.folder


def test_the_page_runs(folder: Path, rows: Path):
    """docs/python.md, its blocks one after the other."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks_of(PAGE):
        if block.language == "python":
            exec(compile(block.text, block.place, "exec"), names)
    job = names["job"]
    assert job.state == "succeeded"
    assert names["losses"][1] > names["losses"][40]
    assert names["worst"] == []
    assert names["reply"].text
    assert (folder / "copy.jsonl").read_bytes() == rows.read_bytes()
    assert any(path.suffix == ".safetensors" for path in names["paths"])
    replies = asyncio.run(names["main"](job.id, job.model))
    assert all(replies)
    names["client"].close()


async def test_both_clients_follow_a_job_over_a_link_that_breaks(
    folder: Path, platform: Platform, letters_app: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    proxy = await TcpProxy(platform.shell.port).start()
    options: Any = {"api_key": read_env_file(folder / ".env")["SYNTH_API_KEY"], "retry_budget": 30.0}
    options["base_url"] = f"http://127.0.0.1:{proxy.port}"
    loop = asyncio.get_running_loop()
    job = rl("tiny-qwen3", letters_app.url, iterations=2)

    def cut(*_: Any) -> None:
        proxy.link = Link.CUT

    def mend(*_: Any) -> None:
        proxy.link = Link.OPEN

    def use_blocking() -> dict[str, Any]:
        def on_away(reason: str) -> None:
            loop.call_soon_threadsafe(mend)

        with Client(**options) as client:
            submitted = client.jobs.submit(job)
            seen: list[int] = []
            for event in client.jobs.follow(submitted.id, timeout=300, on_away=on_away):
                seen.append(event.seq)
                if len(seen) in (1, 4):
                    loop.call_soon_threadsafe(cut)
            ended = client.jobs.wait(submitted.id, timeout=60)
            return {
                "job": ended,
                "seen": seen,
                "metrics": client.jobs.metrics(ended.id, name="reward_mean"),
                "rollouts": [*client.jobs.rollouts(ended.id, mode="train")],
                "detail": client.jobs.rollout(ended.id, next(client.jobs.rollouts(ended.id, limit=1)).id),
                "text": client.chat(ended.model or "", "a", max_tokens=4).completion,
            }

    async def use_async() -> dict[str, Any]:
        async with AsyncClient(**options) as client:
            submitted = await client.jobs.submit(job)
            seen: list[int] = []
            async for event in client.jobs.follow(submitted.id, timeout=300, on_away=mend):
                seen.append(event.seq)
                if len(seen) in (1, 4):
                    cut()
            ended = await client.jobs.wait(submitted.id, timeout=60)
            rollouts = [rollout async for rollout in client.jobs.rollouts(ended.id, mode="train")]
            return {
                "job": ended,
                "seen": seen,
                "metrics": await client.jobs.metrics(ended.id, name="reward_mean"),
                "rollouts": rollouts,
                "detail": await client.jobs.rollout(ended.id, rollouts[0].id),
                "text": (await client.chat(ended.model or "", "a", max_tokens=4)).completion,
            }

    try:
        results = [await asyncio.to_thread(use_blocking), await use_async()]
    finally:
        await proxy.close()
    for result in results:
        ended = result["job"]
        assert ended.state == "succeeded"
        log, seen = platform.log(ended.id), result["seen"]
        assert seen == [event.seq for event in log][: len(seen)]
        assert log[len(seen) - 1].type == "job.succeeded"
        assert [point.step for point in result["metrics"]] == [1, 2]
        assert len(result["rollouts"]) == 32
        assert result["detail"].transcript is not None
        assert result["text"]["choices"]


def test_mistakes_are_errors_of_their_kind(folder: Path, platform: Platform):
    with Client() as client:
        with pytest.raises(NotFound) as missing:
            client.jobs.get("job_0000000000000000")
        with pytest.raises(UsageProblem, match="no such file"):
            client.files.upload("no.jsonl")
        with pytest.raises(UsageProblem, match="no such file"):
            client.jobs.submit(sft(), dataset="no.jsonl")
        cancelled = client.jobs.submit(sft(steps=100_000), dataset="math.jsonl")
        client.jobs.cancel(cancelled.id)
        with pytest.raises(FailedJob) as failed:
            client.jobs.wait(cancelled.id, timeout=120)
    assert (missing.value.status, len(missing.value.request_id or "")) == (404, 32)
    assert failed.value.job.state == "cancelled"
    wrong = Client(api_key="synth_live_wrong", base_url=f"http://127.0.0.1:{platform.shell.port}")
    with wrong, pytest.raises(NotAuthorised) as refused:
        wrong.account()
    assert "synth_live_wrong" not in f"{refused.value!r}"
