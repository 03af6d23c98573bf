"""A trainer and an inference process that take turns at one device: jobs learn, and no death holds them up."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.demo.math import dataset
from synth.runtime.device_turn import read_holder
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import KEY, Served

CONFIGS = Path(__file__).parents[2] / "configs" / "gpu"

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]


@pytest.fixture(scope="module")
def turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("turns") / "turn"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, turn: Path) -> Iterator[Platform]:
    """A cluster whose trainer and inference process share a device: the CPU, by the same code as a GPU."""
    shell = Shell(tmp_path_factory.mktemp("shared"))
    (shell.folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    shell.ok("up", "--detach", "--port", str(shell.port), SYNTH_TURN_FILE=str(turn), SYNTH_TURN_S="0.5")
    try:
        shell.make_model()
        yield Platform(shell)
    finally:
        shell.run("down")


def logged(shared: Platform, service: str, text: str) -> list[str]:
    """The lines of a service's log that hold a text."""
    lines = (shared.shell.folder / ".synth" / "logs" / f"{service}.log").read_text().splitlines()
    return [line for line in lines if text in line]


@pytest.mark.parametrize("level", [0, 1])
def test_an_rl_job_samples_and_trains_by_turns(shared: Platform, letters_app: Served, level: int) -> None:
    job = shared.submit(rl("tiny-qwen3", letters_app.url, iterations=3, training=f"async_level = {level}"))
    assert shared.succeeded(job)["state"] == "succeeded"
    steps = shared.steps(job)
    assert [step["skipped"] for step in steps] == [0, 0, 0]
    assert all(step["seconds_turn"] >= 0 for step in steps)
    # Each step had a turn of its own, and inference has had the others.
    assert len(logged(shared, "trainer", f"{job} took the turn")) >= 3
    assert len(logged(shared, "inference", "gave the turn up")) >= 3
    # Nobody is to blame for the wait.
    assert shared.events(job, "rollout.failed") == []


@pytest.fixture(scope="module")
def sums(shared: Platform) -> Path:
    """A dataset in the folder of the cluster whose device is shared."""
    file = shared.shell.folder / "math.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows(128, seed=0)))
    return file


def test_chats_are_answered_between_the_turns_of_an_sft_job(shared: Platform, sums: Path) -> None:
    job = shared.submit(sft(steps=100_000), "--dataset", sums.name)

    def step() -> int:
        return shared.job(job)["step"]

    eventually(lambda: step() > 0, timeout=240)
    assert isinstance(shared.greedy("tiny-qwen3", "2+2="), str)
    answered = step()
    eventually(lambda: step() > answered, timeout=240)
    shared.client.jobs.cancel(job)
    assert shared.outcome(job)[1]["state"] == "cancelled"


@pytest.mark.parametrize("size", ["0.6b", "4b"])
def test_the_job_files_for_one_gpu_run_with_a_stand_in_for_their_model(
    shared: Platform, letters_app: Served, sums: Path, size: str
) -> None:
    """The files of docs/gpu.md, shortened; the task app is one that pays a model that can do nothing yet."""
    base = f"Qwen/Qwen3-{size.upper()}"
    shared.shell.ok("models", "alias", base, "tiny-qwen3")

    def made(name: str, *flags: str, **values: object) -> str:
        settings = [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        return shared.shell.ok("submit", str(CONFIGS / name), *settings, *flags, "--detach").strip()

    taught = made(f"sft_{size}.toml", "--dataset", str(sums), hyperparameters__total_steps=4)
    short = {"training__iterations_per_epoch": 2, "training__batch_size": 4, "evaluation__instances": 4}
    job = made(
        f"rl_{size}.toml",
        *("--model", shared.succeeded(taught)["model"], "--task-url", letters_app.url),
        **short,
        rollout__env_name="letters",
    )
    made_model = shared.succeeded(job)["model"]
    assert [step["skipped"] for step in shared.steps(job)] == [0, 0]
    assert made_model.startswith(f"rl:{base}:")


@pytest.mark.parametrize("victim", ["trainer", "inference"])
def test_whoever_is_killed_in_its_turn_leaves_it_free(
    shared: Platform, letters_app: Served, turn: Path, victim: str
) -> None:
    job = shared.submit(rl("tiny-qwen3", letters_app.url, iterations=30))

    def kill_holder() -> bool:
        # The learner itself has the trainer's turn, in a process of its own.
        found = read_holder(turn)
        if found is None or not found.who.startswith(victim):
            return False
        os.kill(found.pid, signal.SIGKILL)
        return True

    eventually(lambda: bool(shared.events(job, "train.step")), timeout=240)
    # A turn of this small model is over within a tenth of a second.
    eventually(kill_holder, timeout=60, every=0.002)
    assert len(shared.steps(job)) < 30
    assert shared.succeeded(job)["state"] == "succeeded"
    assert len(shared.steps(job)) == 30
