"""`synth-ai eval` and `filter`: the user's loop from a model's answers to the next dataset."""

from __future__ import annotations

import json
import re

import pytest

from tests.clients.published import Published
from tests.e2e.platform import Platform

pytestmark = pytest.mark.timeout(600)


def evaluation(model: str, inference_url: str) -> str:
    return f"""
[eval]
app_id = "math"
model = "{model}"
seeds = [1000000, 1000001, 1000002, 1000003, 1000004, 1000005, 1000006, 1000007]
concurrency = 4
env_name = "math"
policy_name = "math-single-turn"

[eval.policy_config]
inference_url = "{inference_url}"
max_llm_calls = 1
max_tokens = 32
temperature = 1.0
"""


def bundled(model: str, url: str) -> str:
    """An evaluation on the Math app that the client brings along, which sends no key to any model."""
    return f"""
[eval]
app_id = "math-single-step"
model = "{model}"
seeds = [0, 1, 2]
concurrency = 1
env_name = "math"
policy_name = "math-single-step"

[eval.policy_config]
inference_url = "{url}"
max_tokens = 32
"""


def filtering(db: str, output: str) -> str:
    return f"""
[filter]
db = "{db}"
output = "{output}"
limit = 5
"""


def test_a_models_answers_are_stored_filtered_and_trained_on(synth_ai: Published, sft_model: str, platform: Platform):
    config = synth_ai.write(evaluation(sft_model, f"{synth_ai.root}/api/inference"))
    evaluated = synth_ai.evaluate(config, "traces.db")
    assert evaluated.code == 0, evaluated.text
    for seed in range(1_000_000, 1_000_008):
        assert f"seed={seed} status=200" in evaluated.text, evaluated.text
    filtered = synth_ai.filter(synth_ai.write(filtering("traces.db", "good.jsonl")))
    assert filtered.code == 0, filtered.text
    rows = [json.loads(line) for line in (synth_ai.folder / "good.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    for row in rows:
        assert [message["role"] for message in row["messages"]][-2:] == ["user", "assistant"]
        assert row["messages"][-1]["content"] != "[no response recorded]"
    uploaded = platform.shell.json("files", "upload", str(synth_ai.folder / "good.jsonl"))
    assert (uploaded["status"], uploaded["rows"]) == ("ready", 5)


def test_the_clients_own_math_app_which_sends_no_key_chats_by_a_url(
    synth_ai: Published, sft_model: str, platform: Platform
):
    for split in ("train", "test"):
        row = json.dumps({"problem": "What is 12 + 34?", "solution": "The answer is 46"})
        (synth_ai.folder / f"{split}.jsonl").write_text(f"{row}\n" * 3)
    [url] = platform.shell.ok("keys", "create", "--url", "--model", sft_model, "--expires-in", "1h").split()
    before = chats(platform, "/keys/{url_key}/v1/chat/completions")
    for address, answered in ((url, 3), (f"{synth_ai.root}/v1", 0)):
        config = synth_ai.write(bundled(sft_model, address))
        evaluated = synth_ai.evaluate(
            config, "bundled.db", bundled=True, MATH_DATASET_LOCAL_DIR=str(synth_ai.folder), HF_DATASETS_OFFLINE="1"
        )
        assert evaluated.code == 0, evaluated.text
        # The app says so of each reply that it got, and scores -1 without one.
        assert evaluated.text.count("[MATH_INFER]") == answered, evaluated.text
    assert chats(platform, "/keys/{url_key}/v1/chat/completions") == before + 3


def chats(platform: Platform, route: str) -> int:
    """How many calls of a route the gateway has answered with a 200."""
    found = re.findall(
        rf'^synth_gateway_requests_total{{(?=[^}}]*route="{re.escape(route)}")(?=[^}}]*status="200")[^}}]*}} (\d+)',
        platform.api.get("/metrics").text,
        re.MULTILINE,
    )
    return sum(map(int, found))
