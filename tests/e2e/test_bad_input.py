"""What a user gets wrong, from the command line and over the API: one clear error each, and nothing is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest

from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform, rl, sft

pytestmark = pytest.mark.timeout(1200)

NOBODY = "http://127.0.0.1:9"
GOOD = rl("tiny-qwen3", NOBODY)
#: A wrong job file, the place that is named, and what is said of it.
WRONG = {
    "no TOML": (GOOD.replace("[model]", "[model"), ":8", "is not closed"),
    "a misspelt key": (GOOD.replace("learning_rate", "learning_rat"), ":21 [training]", "did you mean 'learning_rate'"),
    "an unknown section": (GOOD.replace("[training]", "[trainig]"), ":17 [trainig]", "did you mean 'training'"),
    "both source and base": (
        GOOD.replace('base = "tiny-qwen3"', 'base = "tiny-qwen3"\nsource = "rl:tiny-qwen3:job_1"'),
        "[model].source",
        "are two models",
    ),
    "neither source nor base": (GOOD.replace('base = "tiny-qwen3"', ""), "[model]", "base"),
    "no dataset": (sft(), "[job]", "data"),
}


def over_the_api(platform: Platform, text: str, **more: str) -> str:
    """Submit past the command line's own checks; returns the job's id."""
    body = {"config": text, "config_name": "mine.toml", **more}
    return platform.api.post("/api/jobs", json=body).raise_for_status().json()["id"]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_job_file_is_exit_2_with_its_place_and_makes_no_job(platform: Platform, name: str):
    text, place, words = WRONG[name]
    before = platform.client.jobs.list()
    file = platform.write(text, "wrong")
    done = platform.shell.run("submit", file, "--detach")
    assert done.returncode == 2
    assert done.stdout == ""
    for said in (file, place, words):
        assert said in done.stderr
    assert [j.id for j in platform.client.jobs.list()] == [j.id for j in before]


def test_the_same_files_over_the_api_are_rejected_with_the_same_words(platform: Platform):
    jobs = {name: over_the_api(platform, text) for name, (text, _, _) in WRONG.items()}
    for name, job in jobs.items():
        _, place, words = WRONG[name]
        code, found = platform.outcome(job)
        assert (code, found["state"]) == (3, "rejected"), name
        said = [f"{p['where']} {p['what']} {p['expected']} {p['fix']}" for p in found["problems"]]
        assert any("mine.toml" in s and place in s and words in s for s in said), (name, said)


def test_every_mistake_of_a_file_is_named_at_once(platform: Platform):
    text = GOOD.replace("learning_rate", "learning_rat").replace("group_size = 4", "group_size = 1")
    done = platform.shell.run("submit", platform.write(text), "--detach")
    assert done.returncode == 2
    assert "learning_rat" in done.stderr
    assert "group_size = 1" in done.stderr


def test_a_dataset_that_is_not_there_is_exit_2_with_its_name(platform: Platform):
    done = platform.shell.run("submit", platform.write(sft()), "--dataset", "nowhere.jsonl", "--detach")
    assert done.returncode == 2
    assert "nowhere.jsonl" in done.stderr


def test_a_file_id_that_is_not_there_refuses_the_job(platform: Platform):
    code, job = platform.outcome(over_the_api(platform, sft(), training_file="file_0123456789abcdef"))
    assert (code, job["state"]) == (3, "rejected")
    assert "file_0123456789abcdef" in job["problems"][0]["what"]


def test_an_unknown_model_refuses_the_job_and_names_the_nearest(platform: Platform, rows: Path):
    code, job = platform.outcome(platform.submit(sft(model="tiny-qwen4"), "--dataset", rows.name, "--no-preflight"))
    assert (code, job["state"]) == (3, "rejected")
    [problem] = job["problems"]
    assert "tiny-qwen4" in problem["what"]
    assert "tiny-qwen3" in problem["fix"]


def test_a_model_that_no_job_has_made_refuses_the_job(platform: Platform):
    code, job = platform.outcome(platform.submit(rl("rl:tiny-qwen3:job_0123456789abcdef", NOBODY), "--no-preflight"))
    assert (code, job["state"]) == (3, "rejected")
    assert any("job_0123456789abcdef" in p["what"] for p in job["problems"])


def test_a_broken_line_37_refuses_the_job_that_would_train_on_it(platform: Platform, rows: Path):
    lines = rows.read_text().splitlines()
    lines[36] = '{"messages": [}'
    upload = {"file": ("broken.jsonl", "\n".join(lines).encode())}
    file = platform.api.post("/api/files", files=upload, data={"purpose": "fine-tune"}).raise_for_status().json()
    code, job = platform.outcome(over_the_api(platform, sft(), training_file=file["id"]))
    assert (code, job["state"]) == (3, "rejected")
    text = json.dumps(job["problems"])
    assert "line 37" in text or ":37" in text


def test_a_wrong_key_is_refused_everywhere_but_where_health_is_asked(platform: Platform):
    wrong = {"Authorization": "Bearer sk_wrong"}
    with httpx.Client(base_url=str(platform.api.base_url), timeout=30) as stranger:
        for headers in (wrong, {}):
            for path in ("/api/jobs", "/api/files", "/api/models", "/v1/models", "/api/me"):
                reply = stranger.get(path, headers=headers)
                assert reply.status_code == 401, path
                assert reply.json()["error"]["type"] == "authentication"
        body = {"model": "tiny-qwen3", "messages": [{"role": "user", "content": "hi"}]}
        assert stranger.post("/v1/chat/completions", json=body, headers=wrong).status_code == 401
        assert stranger.get("/healthz").status_code == 200


def test_a_chat_with_a_model_that_is_not_there_is_one_error(platform: Platform):
    for model in ("tiny-qwen4", "rl:tiny-qwen3:job_0123456789abcdef"):
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        reply = platform.api.post("/v1/chat/completions", json=body)
        assert reply.status_code in (400, 404)
        assert model in reply.json()["error"]["message"]


def test_a_job_file_of_half_a_megabyte_is_refused_by_both(platform: Platform):
    text = f"{GOOD}\n#{'x' * 500_000}"
    done = platform.shell.run("submit", platform.write(text), "--detach")
    assert done.returncode == 2
    reply = platform.api.post("/api/jobs", json={"config": text})
    assert reply.status_code == 422
    assert "262144" in reply.json()["error"]["message"]


def test_a_broken_model_folder_hides_no_other_model(platform: Platform):
    folder = platform.shell.folder / ".synth" / "models" / "broken"
    folder.mkdir()
    (folder / "config.json").write_text("{")
    try:
        assert "tiny-qwen3" in platform.shell.ok("models", "ls")
        done = platform.shell.run("chat", "broken", "-m", "hi")
        assert done.returncode != 0
        assert "config.json" in done.stderr
        assert "not JSON" in done.stderr
    finally:
        (folder / "config.json").unlink()
        folder.rmdir()


def test_the_same_submission_twice_is_one_job_and_another_one_is_told(platform: Platform):
    headers = {"Idempotency-Key": "of the tests"}
    body = {"config": WRONG["no dataset"][0], "config_name": "mine.toml"}
    first, second = (platform.api.post("/api/jobs", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    other = platform.api.post("/api/jobs", json=body | {"seed": 7}, headers=headers)
    assert other.status_code == 422
    assert first.json()["id"] in other.json()["error"]["message"]


def test_after_all_that_the_cluster_is_healthy_and_works(platform: Platform, rows: Path):
    report = platform.shell.report()
    assert report["state"] == "healthy"
    assert {p["name"]: p["restarts"] for p in report["processes"] if p["restarts"]} == {}
    platform.succeeded(platform.submit(sft(steps=5), "--dataset", rows.name))


def test_a_job_for_which_no_trainer_runs_is_told_what_it_waits_for(tmp_path: Path, rows: Path):
    shell = Shell(tmp_path)
    few = ("gateway", "validator", "verifier", "files")
    flags = [flag for name in few for flag in ("--service", name)]
    shell.ok("up", "--detach", "--port", str(shell.port), *flags, SYNTH_WAITING_AFTER_S="1")
    try:
        shutil.copytree(rows.parent / ".synth" / "models", tmp_path / ".synth" / "models")
        shutil.copy(rows, tmp_path)
        platform = Platform(shell)
        job = platform.submit(sft(), "--dataset", rows.name)
        # On a busy machine it may wait for the verifier first.
        eventually(lambda: [e for e in platform.events(job, "queue.waiting") if e["need"] == "trainer"] != [])
        found = platform.job(job)
        assert (found["state"], found["waiting"]["position"]) == ("verified", 1)
        platform.client.jobs.cancel(job)
    finally:
        shell.run("down")


def both(platform: Platform, text: str, *flags: str) -> tuple[int, list[str], list[str]]:
    """The exit code of `config check`, and what it and a submission say is wrong with a job, without their places."""
    file = platform.write(text)
    checked = platform.shell.run("config", "check", file, *flags, "-o", "json")
    [report] = json.loads(checked.stdout)
    sent = platform.shell.run("submit", file, *flags, "--no-preflight", "--follow", "-o", "json", timeout=120)
    said = [p["what"] for p in report["problems"]]
    if sent.returncode == 2:
        # Refused before there was a job: an error for each problem, where it is, and then what.
        lines = [line for line in sent.stderr.splitlines() if line.startswith("error: ")]
        return checked.returncode, said, [next((w for w in said if line.endswith(w)), line) for line in lines]
    job = json.loads(sent.stdout.splitlines()[-1])["data"]
    return checked.returncode, said, [p["what"] for p in job.get("problems", [])]


@pytest.mark.long
def test_check_refuses_what_submit_refuses_with_the_same_words(platform: Platform, rows: Path):
    folder = platform.shell.folder
    broken = rows.read_text().splitlines(keepends=True)[:50]
    broken[36] = '{"messages": "none"}\n'
    (folder / "broken.jsonl").write_text("".join(broken))
    evaluation = f'[eval]\nmodel = "tiny-qwen4"\nseeds = "0-3"\ntask_app_url = "{NOBODY}"'
    refused = {
        "a dataset that is not there": (sft(), "--dataset", "nowhere.jsonl"),
        "a dataset with a bad line": (sft(), "--dataset", "broken.jsonl"),
        "an uploaded file that is not there": (sft().replace("[job]", '[job]\ndata = "file_0123456789abcdef"'),),
        "an unknown base": (sft(model="tiny-qwen4"), "--dataset", str(rows)),
        "a base without weights": (sft(model="Qwen/Qwen3-1.7B"), "--dataset", str(rows)),
        "a source that no job made": (rl("rl:tiny-qwen3:job_0123456789abcdef", NOBODY),),
        "an evaluation of an unknown model": (evaluation,),
    }
    for name, (text, *flags) in refused.items():
        code, checked, submitted = both(platform, text, *flags)
        # Beside the rest, a submission has asked for the task app.
        submitted = [what for what in submitted if not what.startswith("the task app's")]
        assert code == 2, name
        assert checked == submitted, name
        assert checked, name


@pytest.mark.long
def test_check_takes_what_submit_takes(platform: Platform, rows: Path):
    """Also a model that only the cluster can know: one that a job has made."""
    made = platform.succeeded(platform.submit(sft(steps=1), "--dataset", str(rows)))["model"]
    uploaded = json.loads(platform.shell.ok("files", "upload", str(rows), "-o", "json"))["id"]
    again = sft(steps=1, model=made).replace("[job]", f'[job]\ndata = "{uploaded}"')
    assert platform.shell.run("config", "check", platform.write(again)).returncode == 0
    platform.succeeded(platform.submit(again))


@pytest.mark.long
def test_check_takes_a_folder_of_parquet_pairs_as_submit_does(platform: Platform):
    import pyarrow as pa
    from pyarrow import parquet

    folder = platform.shell.folder / "preferences" / "data"
    folder.mkdir(parents=True)
    for k, split in enumerate(("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001")):
        pairs = [{"prompt": f"{k}{i} + 1?", "chosen": f"{k}{i}1", "rejected": "none"} for i in range(8)]
        parquet.write_table(pa.Table.from_pylist(pairs), folder / f"{split}.parquet")
    dpo = sft(steps=1).replace('"sft"', '"dpo"').replace("[job]", f'[job]\ndata = "{folder.parent}"')
    assert platform.shell.run("config", "check", platform.write(dpo)).returncode == 0
    platform.succeeded(platform.submit(dpo))
    [file] = platform.client.files.list(limit=1)
    assert (file.filename, file.rows, file.pairs) == ("preferences.jsonl", 16, 16)
    assert file.converted == {"chosen_rejected": 16}
    checked = platform.shell.run("config", "check", platform.write(dpo.replace('"dpo"', '"sft"')))
    assert checked.returncode == 2
    assert "holds preference pairs, and this is a supervised job" in checked.stdout + checked.stderr
