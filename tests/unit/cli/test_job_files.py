"""`synthctl config`: job files are checked, explained and begun without a cluster."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from synth.cli.jobs.files import Flags, validate_text
from synth.cli.tui.explain import SettingsTable, settings_of
from synth.client.connections.config import ConfigValue
from synth.client.submission import LenientRegistry
from tests.unit.cli.backend import Answer, backend_that
from tests.unit.cli.test_command_line import synthctl

STARTERS = Path(__file__).parents[3] / "services" / "synth" / "cli" / "starters"


@pytest.fixture
def rl(tmp_path: Path) -> Path:
    file = tmp_path / "rl.toml"
    file.write_text((STARTERS / "rl.toml").read_text())
    return file


@pytest.mark.parametrize("kind", ["rl", "sft", "eval"])
def test_a_starter_file_is_right_and_short_and_changes_nothing_that_it_shows_as_assumed(kind: str, tmp_path: Path):
    text = (STARTERS / f"{kind}.toml").read_text()
    flags = Flags(dataset=tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    _, found = validate_text(text, name=kind, flags=flags, registry=LenientRegistry())
    assert (found.problems, found.warnings) == ([], [])
    assert len(text.splitlines()) < 50
    assumed = text.replace("\n# temperature", "\ntemperature").replace("\n# max_c", "\nmax_c")
    for line in ("async_level = 1 ", "concurrency = 16 ", "lr_scheduler", "warmup_ratio"):
        assumed = assumed.replace(f"\n# {line}", f"\n{line}")
    assert (assumed == text) is False
    _, spelled_out = validate_text(assumed, name=kind, flags=flags, registry=LenientRegistry())
    assert spelled_out.values == found.values


def test_check_prints_every_problem_of_every_file_and_says_what_good_ones_are(rl: Path):
    bad = rl.with_name("bad.toml")
    bad.write_text(
        rl.read_text().replace("group_size = 8", "group_sze = 1").replace("gspo", "ppo")
        + "[vllm]\nmax_model_len = 99\n"
    )
    run = synthctl("config", "check", "rl.toml", "bad.toml", "missing.toml", cwd=rl.parent)
    assert run.returncode == 2
    assert run.stdout == (
        "rl.toml: RL (lora) of Qwen/Qwen3-0.6B, 20 iterations of 8 x 8 rollouts at http://127.0.0.1:8001\n"
    )
    errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert [e.split(" ")[1] for e in errors] == ["bad.toml:10", "bad.toml:36", "bad.toml:36", "missing.toml:"]
    assert "warning: bad.toml:50 [vllm].max_model_len has no effect" in run.stderr
    assert synthctl("config", "check", "rl.toml", cwd=rl.parent).returncode == 0


def test_check_asks_the_task_app_that_is_named_for_its_environments(rl: Path):
    answer = Answer(body={"taskset": {}, "env_names": ["guess"]})
    alone = (
        "warning: rl.toml:16 [model].base: the model 'Qwen/Qwen3-0.6B' was not checked by the cluster "
        "(no SYNTH_API_KEY)\n"
    )
    with backend_that(lambda request: answer) as (app, _):
        url = app.url.removesuffix("/api")
        run = synthctl("config", "check", "rl.toml", "--task-url", url, cwd=rl.parent)
        assert (run.returncode, run.stderr) == (0, alone), "the app plays its only environment"
        rl.write_text(rl.read_text().replace("# env_name", "env_name"))
        run = synthctl("config", "check", "rl.toml", "--task-url", url, cwd=rl.parent)
        assert (run.returncode, run.stdout) == (2, "")
        assert run.stderr == alone + (
            f"error: rl.toml:25 [rollout].env_name: 'my-task' is not an environment of the task app at {url}\n"
            "  expected 'guess'\n"
            '  write env_name = "guess"\n'
        )
        rl.write_text(rl.read_text().replace('"my-task"', '"guess"'))
        run = synthctl("config", "check", "rl.toml", "--task-url", url, cwd=rl.parent)
        assert (run.returncode, run.stderr) == (0, alone)
    run = synthctl("config", "check", "rl.toml", "--task-url", url, cwd=rl.parent)
    assert run.returncode == 0
    assert "cannot be reached" in run.stderr
    assert "its env_name was not checked" in run.stderr


def test_check_tells_a_program_the_same(rl: Path):
    rl.with_name("bad.toml").write_text(rl.read_text().replace("group_size = 8", "group_size = 1"))
    run = synthctl("config", "check", "rl.toml", "bad.toml", "missing.toml", "-o", "json", cwd=rl.parent)
    assert (run.returncode, run.stderr) == (2, "")
    good, bad, missing = json.loads(run.stdout)
    assert (good["file"], good["kind"], good["problems"]) == ("rl.toml", "rl", [])
    assert [p["where"] for p in bad["problems"]] == ["bad.toml:36 [training].group_size"]
    assert (missing["kind"], missing["problems"][0]["what"]) == (None, "there is no such file")


def test_check_takes_a_missing_dataset_for_a_problem_of_the_line_that_names_it(tmp_path: Path):
    (tmp_path / "sft.toml").write_text('[job]\nmodel = "Qwen/Qwen3-0.6B"\ndata = "rows.jsonl"\n')
    run = synthctl("config", "check", "sft.toml", cwd=tmp_path)
    assert run.returncode == 2
    assert "sft.toml:3 [job].data 'rows.jsonl': there is no such file" in run.stderr


def test_explain_gives_each_value_with_its_place_and_says_what_was_changed(rl: Path):
    rl.write_text(rl.read_text().replace("max_tokens = 512", "top_p = 0.9\nmax_tokens = 64"))
    run = synthctl(
        "config", "explain", "rl.toml", "--seed", "3", "-o", "json", cwd=rl.parent, TASK_APP_URL="http://x:1"
    )
    assert run.returncode == 0, run.stderr
    settings = {s["field"]: s for s in json.loads(run.stdout)["settings"]}
    assert settings["rollout.sampling.max_tokens"]["origin"] == "rl.toml:31 [rollout.policy_config].max_tokens"
    assert settings["clip_norm"]["key"] == "training.grad_clip"
    assert settings["rollout.task_url"] | {"field": ""} == {
        "field": "",
        "key": "rollout.task_url",
        "value": "http://x:1",
        "origin": "TASK_APP_URL (environment)",
        "why": "",
    }
    assert settings["seed"]["origin"] == "--seed"
    assert settings["lora.targets"]["origin"] == "registry"
    assert settings["clip_low"]["origin"] == "default"
    assert "0.9 becomes 1.0 (off)" in settings["rollout.sampling.top_p"]["why"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_an_explained_job_fits_the_terminal(width: int, rl: Path):
    flags = Flags(task_url=ConfigValue("http://a-task-app-with-a-long-name.example.org:8001/v1", "--task-url"))
    _, found = validate_text(rl.read_text(), name="rl.toml", flags=flags, registry=LenientRegistry())
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(SettingsTable(settings_of(found), "rl.toml"))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any("rollout.max_concurrent_rollouts" in line and "64" in line for line in lines)
    assert len([line for line in lines if "rl.toml:" in line]) >= 15


def test_init_writes_a_file_once(tmp_path: Path):
    assert synthctl("config", "init", "eval", "--to", "eval.toml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "eval.toml").read_text() == (STARTERS / "eval.toml").read_text()
    again = synthctl("config", "init", "rl", "--to", "eval.toml", cwd=tmp_path)
    assert again.returncode == 2
    assert "this file exists" in again.stderr
    assert "this is a directory" in synthctl("config", "init", "--to", ".", cwd=tmp_path).stderr
    assert "no directory nowhere" in synthctl("config", "init", "--to", "nowhere/rl.toml", cwd=tmp_path).stderr
    assert synthctl("config", "init", "rl", cwd=tmp_path).stdout == (STARTERS / "rl.toml").read_text()
    seeing = synthctl("config", "init", "rl", "--vision", cwd=tmp_path).stdout
    assert seeing == (STARTERS / "rl_vision.toml").read_text()


def test_a_model_that_only_the_cluster_can_know_is_a_warning_here(rl: Path):
    rl.write_text(rl.read_text().replace("Qwen/Qwen3-0.6B", "my-model"))
    run = synthctl("config", "check", "rl.toml", cwd=rl.parent)
    assert run.returncode == 0
    assert "the model 'my-model' was not checked by the cluster (no SYNTH_API_KEY)" in run.stderr
    run = synthctl("config", "explain", "rl.toml", cwd=rl.parent)
    assert "unknown model 'my-model' on this machine; the cluster decides" in run.stderr
    (rl.parent / ".synth" / "models").mkdir(parents=True)
    assert synthctl("config", "check", "rl.toml", cwd=rl.parent).returncode == 2
    # What this machine has says nothing of a cluster that is elsewhere, and away.
    away = {"BACKEND_BASE_URL": "http://synth.invalid:8000", "SYNTH_API_KEY": "synth_live_x"}
    run = synthctl("config", "check", "rl.toml", cwd=rl.parent, **away)
    assert run.returncode == 0
    assert "was not checked by the cluster (cannot reach the backend" in run.stderr


def test_check_reads_every_line_of_a_dataset_and_says_of_each_what_an_upload_would(tmp_path: Path):
    (tmp_path / "sft.toml").write_text('[job]\nmodel = "Qwen/Qwen3-0.6B"\n')
    good = {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}
    bad = {"messages": [{"role": "user", "content": "1+1"}, {"role": "robot", "content": "2"}]}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [good] * 20 + [bad] + [good] * 5))
    run = synthctl("config", "check", "sft.toml", "--dataset", "rows.jsonl", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert "error: rows.jsonl:21: $.messages[1].role: " in run.stderr
    (tmp_path / "rows.jsonl").write_text(json.dumps(good) + "\n")
    assert synthctl("config", "check", "sft.toml", "--dataset", "rows.jsonl", cwd=tmp_path).returncode == 0


def test_a_file_of_the_cluster_that_is_not_asked_is_a_warning(tmp_path: Path):
    (tmp_path / "sft.toml").write_text('[job]\nmodel = "Qwen/Qwen3-0.6B"\ndata = "file_1"\n')
    run = synthctl("config", "check", "sft.toml", cwd=tmp_path)
    assert run.returncode == 0
    assert "sft.toml:3 [job].data: the file 'file_1' was not checked by the cluster" in run.stderr


def test_a_filter_is_checked_here_and_never_submitted(tmp_path: Path):
    (tmp_path / "f.toml").write_text('[filter]\ndb = "traces.db"\noutput = "rows.jsonl"\nlimit = 10\n')
    run = synthctl("config", "check", "f.toml", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (
        0,
        "f.toml: filter of traces.db into rows.jsonl: `synthctl filter` runs it\n",
    )
    run = synthctl("submit", "f.toml", cwd=tmp_path, SYNTH_API_KEY="k")
    assert run.returncode == 2
    assert "synthctl filter FILE" in run.stderr
