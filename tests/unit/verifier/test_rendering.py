"""A file is rendered with its model's chat template before a job starts, and a bad row is named by its line."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from synth.blobs import BlobStore
from synth.chat.template_source import RenderOptions
from synth.cli.checking.dataset import render_dataset
from synth.datasets.render_check import RenderCheck
from synth.errors import UserError
from synth.events import LineProblem
from synth.fairness.slots import FairSlots
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.models import Registry
from synth.models.template_source import read_template_source
from synth.verifier.files import ReadyFile
from synth.verifier.rendering import NotRenderedInTime, Rendering
from synth.verifier.settings import VerifierSettings

LOOP = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ '<|image_pad|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "loop": LOOP,
    "no system": "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + LOOP,
    "alternating": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + LOOP,
    "one tool": "{% if tools and tools | length > 1 %}{{ raise_exception('one tool at a time') }}{% endif %}" + LOOP,
    "strict tools": "{% for t in tools or [] %}{{ t.function.parameters.properties.items() }}{% endfor %}" + LOOP,
    "rewriting": LOOP.replace("<|im_start|>assistant\n", "<|im_start|>model\n"),
    "no images": LOOP.replace("'<|image_pad|>' if p.type == 'image' else p.text", "p.text"),
    "gpt-oss": LOOP.replace("{{ m.content }}", "{{ m.thinking }}<|channel|><|message|>{{ m.content }}"),
}
DAY = date(2027, 1, 2)


def say(*roles: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(roles)], **more}


GOOD = say("user", "assistant")
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
IMAGE = {"type": "image", "image": "blob://orgs/o/images/" + "0" * 64}
SHOWN: dict[str, Any] = {"messages": [{"role": "user", "content": [IMAGE, IMAGE]}, GOOD["messages"][1]]}


def options(template: str, kind: Any = "conversations", **more: Any) -> RenderOptions:
    folder = more.pop("folder")
    (folder / "chat_template.jinja").write_text(TEMPLATES.get(template, template))
    tokens = [{"content": token, "special": True} for token in ("<|im_start|>", "<|im_end|>", "<|image_pad|>")]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    given = {"sees": False, "images": 1, "day": DAY, **more}
    return RenderOptions(source=read_template_source(folder), kind=kind, **given)


def check(given: RenderOptions, *rows: dict[str, Any]) -> list[LineProblem]:
    checked = RenderCheck(given)
    body = b"\n".join(json.dumps(row).encode() for row in rows)
    for i in range(0, len(body), 7):
        checked.feed(body[i : i + 7])
    return checked.finish()


@pytest.mark.parametrize(
    ("template", "row", "path", "reason"),
    [
        ("loop", say("assistant", "user"), "$.messages", "no message before the assistant's first one"),
        ("no system", say("system", "user", "assistant"), "$.messages", "no system role"),
        ("alternating", say("user", "user", "assistant"), "$.messages", "roles must alternate"),
        ("alternating", say("user", "assistant", "tool", "assistant"), "$.messages", "roles must alternate"),
        ("one tool", {**GOOD, "tools": [TOOL, TOOL]}, "$.messages", "one tool at a time"),
        ("strict tools", {**GOOD, "tools": [TOOL]}, "$.messages", "has no attribute"),
        ("rewriting", GOOD, "$.messages", "does not continue its own generation prompt"),
        ("loop", SHOWN, "$.messages[0].content[0].type", "this model sees no images"),
    ],
)
def test_a_row_that_the_template_cannot_render_is_named(
    tmp_path: Path, template: str, row: dict[str, Any], path: str, reason: str
):
    given = options(template, folder=tmp_path)
    (problem,) = check(given, GOOD, row, GOOD) if template != "rewriting" else check(given, row)
    assert (problem.line, problem.path) == (1 if template == "rewriting" else 2, path)
    assert reason in problem.reason


def test_both_sides_of_a_pair_are_rendered(tmp_path: Path):
    def pair(chosen: list[str], rejected: list[str]) -> dict[str, Any]:
        return {"messages": say("user")["messages"]} | {
            name: say(*roles)["messages"] for name, roles in (("chosen", chosen), ("rejected", rejected))
        }

    good = pair(["assistant"], ["assistant", "user", "assistant"])
    bad = pair(["assistant"], ["assistant", "assistant"]), pair(["assistant", "tool"] * 2, ["assistant"])
    found = check(options("alternating", "pairs", folder=tmp_path), good, *bad)
    assert [(problem.line, problem.path) for problem in found] == [(2, "$.rejected"), (3, "$.chosen")]
    (same,) = check(options("loop", "pairs", folder=tmp_path), pair(["assistant"], ["assistant"]))
    assert (same.path, "the same as the chosen side" in same.reason) == ("$.rejected", True)


@pytest.mark.parametrize(
    ("template", "message", "path"),
    [
        ("loop", {"reasoning_content": "so"}, "$.messages[1].reasoning_content"),
        ("loop", {"tool_calls": [TOOL]}, "$.messages[1].tool_calls"),
        ("gpt-oss", {"reasoning_content": "so"}, None),
    ],
)
def test_what_a_template_leaves_out_of_a_learnt_turn_is_named(
    template: str, message: dict[str, Any], path: str | None, tmp_path: Path
):
    row = {"messages": [GOOD["messages"][0], GOOD["messages"][1] | message]}
    assert [problem.path for problem in check(options(template, folder=tmp_path), GOOD, row)] == (
        [path] if path else []
    )


def test_prompts_are_rendered(tmp_path: Path):
    (problem,) = check(options("no system", "prompts", folder=tmp_path), say("user"), say("system", "user"))
    assert problem.line == 2


def test_images_that_the_template_does_not_show_are_named(tmp_path: Path):
    assert check(options("loop", sees=True, folder=tmp_path), SHOWN) == []
    (problem,) = check(options("no images", sees=True, folder=tmp_path), SHOWN)
    assert "shows 0 images, and the messages have 1" in problem.reason


def test_a_file_without_a_turn_to_learn_from_is_named(tmp_path: Path):
    unweighted: dict[str, Any] = {"messages": [GOOD["messages"][0], {**GOOD["messages"][1], "weight": 0}]}
    (problem,) = check(options("loop", folder=tmp_path), unweighted, unweighted)
    assert "no row of the file" in problem.reason
    assert check(options("loop", folder=tmp_path), unweighted, GOOD) == []


def test_rows_of_other_shapes_are_rendered_before_they_are_uploaded(tmp_path: Path):
    turns = [{"from": name, "value": "x"} for name in ("system", "human", "gpt")]
    rows = [{"conversations": turns[1:]}, {"conversations": turns}, {"instruction": "a", "output": "b"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read: list[int] = []
    (problem,) = render_dataset(path, options("no system", folder=tmp_path), read=read.append)
    assert (problem.where, read[-1]) == (f"{path}:2 $.messages", path.stat().st_size)
    assert "no system role" in problem.what


def test_the_date_is_the_jobs(tmp_path: Path):
    dated = LOOP.replace("<|im_end|>", "{{ '' if strftime_now('%d') == '02' else raise_exception('late') }}<|im_end|>")
    assert check(options(dated, folder=tmp_path), GOOD) == []
    given = options(dated, folder=tmp_path, day=date(2027, 1, 3))
    assert "late" in check(given, GOOD)[0].reason
    assert given.digest() != options(dated, folder=tmp_path).digest()
    assert options("loop", folder=tmp_path, day=DAY).digest() == options("loop", folder=tmp_path, day=date.min).digest()


SFT = """
[algorithm]
type = "offline"
method = "sft"
variety = "fft"
[job]
model = "m"
data = "file_1"
[hyperparameters]
n_epochs = 1
"""


class Verifying:
    """The check of a file in its own process, with a real blob store."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.model = folder / "models" / "m"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text('{"model_type": "qwen3"}')
        self.blobs = BlobStore.open(f"file:{folder / 'blobs'}")
        self.folder = folder
        self.settings = VerifierSettings(**settings)
        registry = Registry(folder / "models")
        self.rendering = Rendering(self.blobs, registry, self.settings, FairSlots(1, spare=1))
        self.job = resolve_job(read_toml(SFT, name="j.toml"), overrides=Overrides(), registry=registry).job

    async def check(self, *rows: dict[str, Any], **more: Any) -> None:
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        blob = await self.blobs.put_bytes("orgs/o/files/f", body)
        file = ReadyFile("rows.jsonl", blob, 0, False, len(rows), 0, False)
        await self.rendering.check(self.job, file, org="o", day=DAY, where="training_file", **more)

    @property
    def recorded(self) -> int:
        return sum(path.is_file() for path in (self.folder / "blobs" / "orgs" / "o").glob("rendered/*"))


async def test_a_file_that_passed_is_not_rendered_again_for_the_same_template(tmp_path: Path):
    verifying = Verifying(tmp_path)
    (verifying.model / "chat_template.jinja").write_text(LOOP)
    await verifying.check(GOOD, GOOD)
    await verifying.check(GOOD, GOOD)
    assert verifying.recorded == 1
    (verifying.model / "chat_template.jinja").write_text(TEMPLATES["no system"])
    await verifying.check(GOOD, GOOD)
    assert verifying.recorded == 2
    with pytest.raises(UserError) as refused:
        await verifying.check(GOOD, say("system", "user", "assistant"))
    assert [problem.where for problem in refused.value.problems] == ["training_file", "rows.jsonl:2 $.messages"]
    assert verifying.recorded == 2


async def test_a_large_file_ends_at_its_first_bad_lines(tmp_path: Path):
    verifying = Verifying(tmp_path)
    (verifying.model / "chat_template.jinja").write_text(LOOP)
    with pytest.raises(UserError) as refused:
        await verifying.check(*[say("assistant", "user", note="x" * 100_000)] * 100)
    assert len(refused.value.problems) == 21


async def test_a_template_that_never_ends_is_stopped_at_the_deadline(tmp_path: Path):
    verifying = Verifying(tmp_path)
    (verifying.model / "chat_template.jinja").write_text("{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3)
    with pytest.raises(NotRenderedInTime, match="SYNTH_RENDER_BYTES_PER_S"):
        await verifying.check(GOOD, within=2.0)


async def test_a_model_without_a_chat_template_is_refused(tmp_path: Path):
    verifying = Verifying(tmp_path)
    (problem,) = verifying.rendering.template_problems(verifying.job, where="model")
    assert problem.what == "'m' has no chat template, and a job renders messages with one"
    (verifying.model / "chat_template.jinja").write_text(LOOP)
    assert verifying.rendering.template_problems(verifying.job, where="model") == []
