"""`synthctl import openai` from a stub of the API and from an exported folder."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import openai_export
from tests.docs.blocks import blocks_of
from tests.unit.cli.backend import Answer, backend_that
from tests.unit.cli.checking import Run
from tests.unit.cli.openai_account.account import ENCODED_METRICS, KEY, METRICS, StubAccount, job, prompts, rows

GRADER = {
    "type": "string_check",
    "name": "same",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
REINFORCEMENT = job(
    "ftjob-rft",
    "reinforcement",
    model="o4-mini-2025-04-16",
    training_file="file-prompts",
    validation_file="file-held-out",
    hyperparameters={
        "n_epochs": 2,
        "batch_size": 4,
        "compute_multiplier": 1.5,
        "eval_interval": 2,
        "eval_samples": 3,
        "learning_rate_multiplier": "auto",
        "reasoning_effort": "medium",
    },
    settings={"grader": GRADER, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
)
PREFERENCES = job("ftjob-dpo", "dpo", hyperparameters={"beta": 0.2, "n_epochs": "auto", "batch_size": "auto"})
JOBS = [
    job("ftjob-sft", validation_file="file-valid", result_files=["file-result"], user_provided_suffix="support"),
    PREFERENCES,
    REINFORCEMENT,
]
PAIR = {
    "input": {"messages": [{"role": "user", "content": "hi"}]},
    "preferred_output": [{"role": "assistant", "content": "hello"}],
    "non_preferred_output": [{"role": "assistant", "content": "what"}],
}
FILES = {
    "file-train": rows(40),
    "file-valid": rows(4),
    "file-result": ENCODED_METRICS,
    "file-prompts": prompts(12),
    "file-held-out": prompts(3),
}


@pytest.fixture
def account() -> StubAccount:
    return StubAccount([*JOBS], dict(FILES))


@pytest.fixture
def url(account: StubAccount, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with backend_that(account) as (backend, _):
        yield backend.url.removesuffix("/api") + "/v1"


def toml(id: str) -> dict[str, Any]:
    return tomllib.loads(Path(f"openai/jobs/{id}.toml").read_text())


def test_an_account_is_imported_with_its_files_and_job_files_that_pass_the_check(
    run: Run, url: str, account: StubAccount
):
    account.evals = [{"object": "eval", "id": "eval_1", "name": "e", "testing_criteria": [GRADER]}]
    code, out, err = run("import", "openai", "--base-url", url, "--base", "tiny-qwen3")
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["ftjob-sft", "ftjob-dpo", "ftjob-rft"]
    assert "3 jobs, 1 evals; 5 files downloaded, 1 were here" in err
    assert "train one here: synthctl submit openai/jobs/ftjob-sft.toml" in err
    assert Path("openai/files/file-result.jsonl").read_bytes() == METRICS
    assert json.loads(Path("openai/jobs/ftjob-sft.json").read_text())["checkpoints"][0]["id"] == "ftckpt-1"
    assert json.loads(Path("openai/evals/eval_1.json").read_text())["testing_criteria"] == [GRADER]
    for id in ("ftjob-sft", "ftjob-rft"):
        code, out, err = run("config", "check", f"openai/jobs/{id}.toml")
        assert code == 0, err


def test_each_setting_of_a_supervised_job_is_kept_with_a_comment(run: Run, url: str):
    run("import", "openai", "--base-url", url)
    config = toml("ftjob-sft")
    assert config["job"] == {"model": "Qwen/Qwen3-8B", "data": "openai/files/file-train.jsonl"}
    assert config["data"] == {"validation_path": "openai/files/file-valid.jsonl"}
    hyper = config["hyperparameters"]
    assert (hyper["n_epochs"], hyper["global_batch"], hyper["seed"]) == (3, 4, 7)
    assert hyper["learning_rate"] == pytest.approx(1.8 * 2e-4)
    assert config["lora"]["r"] == 16
    assert config["tags"] == {
        "suffix": "support",
        "openai_job": "ftjob-sft",
        "openai_model": "gpt-4o-mini-2024-07-18",
    }
    text = Path("openai/jobs/ftjob-sft.toml").read_text()
    assert "# instead of gpt-4o-mini-2024-07-18: about 8 billion parameters" in text
    assert "# learning_rate_multiplier 1.8 of the default rate here" in text


def test_a_preference_job_keeps_its_beta_and_names_what_was_auto(run: Run, url: str):
    run("import", "openai", "--base-url", url)
    config = toml("ftjob-dpo")
    assert config["algorithm"]["method"] == "dpo"
    assert config["hyperparameters"]["beta"] == 0.2
    assert "n_epochs" not in config["hyperparameters"]
    assert '# n_epochs, batch_size: "auto"' in Path("openai/jobs/ftjob-dpo.toml").read_text()


def test_a_reinforcement_job_keeps_its_grader_and_its_effort(run: Run, url: str):
    run("import", "openai", "--base-url", url)
    config = toml("ftjob-rft")
    assert config["grader"] == GRADER
    assert config["model"]["base"] == "Qwen/Qwen3-14B"
    assert config["rollout"]["policy_config"]["thinking_mode"] == "think"
    assert (config["training"]["batch_size"], config["training"]["group_size"]) == (4, 12)
    assert config["evaluation"]["every_n_iters"] == 2
    assert "# Left out: response_format" in Path("openai/jobs/ftjob-rft.toml").read_text()


def test_a_second_run_downloads_nothing_and_keeps_edited_job_files(run: Run, url: str, account: StubAccount):
    run("import", "openai", "--base-url", url)
    Path("openai/jobs/ftjob-sft.toml").write_text("# mine\n")
    account.paths.clear()
    code, _, err = run("import", "openai", "--base-url", url, "--base", "tiny-qwen3")
    assert code == 0
    assert "0 files downloaded, 6 were here" in err
    assert "3 job files existed and are unchanged; remove one to have it written with --base" in err
    assert [path for path in account.paths if "/files/" in path] == []
    assert Path("openai/jobs/ftjob-sft.toml").read_text() == "# mine\n"


def test_an_import_that_broke_off_goes_on_where_it_was(run: Run, url: str, account: StubAccount):
    held_out = account.files.pop("file-held-out")
    account.files["file-held-out"] = b""
    account.failures["/v1/files/file-held-out/content"] = [Answer(status=500)] * 2
    code, _, err = run("import", "openai", "--base-url", url, "--patience", "0")
    assert code == 1
    assert "OpenAI answers HTTP 500" in err
    assert "downloaded files are kept" in err
    account.files["file-held-out"] = held_out
    account.failures.clear()
    account.paths.clear()
    assert run("import", "openai", "--base-url", url)[0] == 0
    assert [path for path in account.paths if path.endswith("/content")] == ["/v1/files/file-held-out/content"]
    assert list(Path("openai/files").glob(".part-*")) == []


def test_a_busy_api_is_called_again(run: Run, url: str, account: StubAccount):
    busy = Answer(status=429, headers={"Retry-After": "0.1"}, body={"error": {"message": "slow down"}})
    account.failures = {"/v1/fine_tuning/jobs": [busy, busy], "/v1/files/file-train/content": [busy]}
    code, _, err = run("import", "openai", "--base-url", url)
    assert code == 0, err


def test_half_a_file_is_not_kept(run: Run, url: str, account: StubAccount):
    half = {"object": "file", "id": "file-train", "filename": "a.jsonl", "bytes": len(FILES["file-train"]) * 2}
    account.failures = {"/v1/files/file-train": [Answer(body=half)]}
    code, _, err = run("import", "openai", "--base-url", url)
    assert code == 1
    assert "bytes arrived" in err
    assert not Path("openai/files/file-train.jsonl").exists()


def test_a_revoked_key_is_one_message(run: Run, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk_revoked")
    code, _, err = run("import", "openai", "--base-url", url)
    assert code == 4
    assert "OpenAI refuses OPENAI_API_KEY (environment)" in err
    assert "revoked" in err
    assert "sk_revoked" not in err


def test_without_a_key_both_ways_are_named(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    code, _, err = run("import", "openai")
    assert code == 4
    assert "OPENAI_API_KEY" in err
    assert "--from" in err


def test_the_key_is_sent_to_no_origin_that_was_not_confirmed(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    code, _, err = run("import", "openai", "--base-url", "https://example.org/v1")
    assert code == 2
    assert "not confirmed" in err
    assert "--trust-model-url" in err


def test_a_job_whose_file_is_gone_is_listed_and_the_others_are_imported(run: Run, url: str, account: StubAccount):
    del account.files["file-prompts"]
    code, out, err = run("import", "openai", "--base-url", url, "-o", "json")
    assert code == 0, err
    report = json.loads(out)
    [rft] = [job for job in report["jobs"] if job["id"] == "ftjob-rft"]
    assert (rft["file"], rft["problem"]) == ("", "its training file is gone")
    assert any("file-prompts of ftjob-rft" in line for line in report["missing"])
    assert Path("openai/jobs/ftjob-rft.json").exists()
    assert Path("openai/jobs/ftjob-sft.toml").exists()


def test_a_job_with_an_unknown_grader_or_method_says_why_it_has_no_job_file(run: Run, url: str, account: StubAccount):
    strange = {"grader": {"type": "oracle", "name": "x"}}
    account.jobs = [
        job("ftjob-a", "reinforcement", training_file="file-prompts", hyperparameters={}, settings=strange),
        job("ftjob-b", "telepathy"),
        job("ftjob-c", hyperparameters={"n_epochs": 2, "momentum": 0.9}),
        job("ftjob-d", hyperparameters=[]) | {"method": "supervised", "result_files": None},
    ]
    code, out, err = run("import", "openai", "--base-url", url, "-o", "json")
    assert code == 0, err
    a, b, c, d = json.loads(out)["jobs"]
    assert "oracle" in a["problem"]
    assert "telepathy" in b["problem"]
    assert (c["problem"], d["problem"]) == ("", "")
    assert "# Left out: momentum = 0.9" in Path("openai/jobs/ftjob-c.toml").read_text()


@pytest.mark.parametrize("id", ["../../evil", "", ".hidden", None])
def test_an_id_that_is_a_path_ends_the_import(run: Run, url: str, account: StubAccount, id: Any):
    account.jobs = [job("ftjob-a") | {"id": id}]
    code, _, err = run("import", "openai", "--base-url", url)
    assert code == 1
    assert "is no id of OpenAI's API" in err


def test_a_dataset_of_images_gets_a_base_that_sees(run: Run, url: str, account: StubAccount):
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    row = {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "a cat"}]}
    account.files["file-train"] = json.dumps(row).encode() + b"\n"
    account.jobs = [job("ftjob-a", model="gpt-4o-2024-08-06")]
    run("import", "openai", "--base-url", url)
    assert toml("ftjob-a")["job"]["model"] == "Qwen/Qwen3-VL-32B-Instruct"


def export(folder: Path) -> Path:
    """What a user may have kept of an account that is closed."""
    (folder / "data").mkdir(parents=True)
    listed = {"object": "list", "data": JOBS[:2], "has_more": False}
    (folder / "jobs.json").write_text(json.dumps(listed))
    (folder / "rft.jsonl").write_text(json.dumps(REINFORCEMENT) + "\n")
    (folder / "files.json").write_text(
        json.dumps([{"object": "file", "id": "file-train", "filename": "support.jsonl"}])
    )
    (folder / "data" / "support.jsonl").write_bytes(FILES["file-train"])
    for id in ("file-valid", "file-prompts", "file-held-out"):
        (folder / "data" / f"{id}.jsonl").write_bytes(FILES[id])
    return folder


def test_an_exported_folder_is_imported_without_a_key(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    code, _, err = run("import", "openai", "--from", str(export(tmp_path / "export")))
    assert code == 0, err
    assert "3 jobs, 0 evals; 4 files downloaded, 1 were here" in err
    assert "file-result of ftjob-sft: it is not in the export" in err
    assert Path("openai/files/file-train.jsonl").read_bytes() == FILES["file-train"]
    assert toml("ftjob-rft")["grader"] == GRADER


def test_an_account_and_an_export_of_it_become_the_same_job_file_and_datasets(
    run: Run, url: str, account: StubAccount, tmp_path: Path
):
    """The export is the one that the page trains, compares and distils (`tests/docs`)."""
    openai_export.write_export(tmp_path / "exported")
    account.jobs = json.loads((tmp_path / "exported" / "jobs.json").read_text())["data"]
    account.files = {file.stem: file.read_bytes() for file in (tmp_path / "exported").glob("*.jsonl")}
    imported: list[dict[str, bytes]] = []
    for source in (("--base-url", url), ("--from", str(tmp_path / "exported"))):
        code, _, err = run("import", "openai", *source, "--base", "tiny-qwen3")
        assert code == 0, err
        folder = Path("openai")
        files = [*folder.glob("jobs/*.toml"), *folder.glob("files/*.jsonl")]
        imported.append({str(file.relative_to(folder)): file.read_bytes() for file in files})
        shutil.rmtree(folder)
    assert imported[0] == imported[1]
    assert {"jobs/ftjob-tickets.toml", "files/file-tickets.jsonl", "files/file-held-out.jsonl"} <= imported[0].keys()


def test_the_commands_of_the_page_run_as_written(run: Run, url: str):
    page = Path(__file__).parents[4] / "docs" / "from-openai.md"
    export(Path("exported"))
    lines = [line for block in blocks_of(page) if block.mark == "run by" for line in block.text.splitlines()]
    commands = [line.split()[1:] for line in lines if line.startswith("synthctl ")]
    assert len(commands) == 2
    for command in commands:
        code, _, err = run(*command, "--base-url", url)
        assert code == 0, err


def test_a_damaged_export_names_the_file(run: Run, tmp_path: Path):
    folder = export(tmp_path / "export")
    (folder / "jobs.json").write_text('{"object": "list", "data": [')
    code, _, err = run("import", "openai", "--from", str(folder))
    assert code == 2
    assert "jobs.json" in err
    assert "this is no JSON" in err
