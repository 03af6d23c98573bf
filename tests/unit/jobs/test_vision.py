"""What the registry adds to the job of a model that sees."""

from __future__ import annotations

import pytest

from synth.errors import UserError
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.base import VisionSettings
from synth.methods.eval import EvalJob
from synth.methods.job import ResolvedJob
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob
from synth.models import Registry

SFT = """
[algorithm]
type = "offline"
method = "sft"
variety = "lora"
[job]
model = "{model}"
data = "file_1"
[hyperparameters]
n_epochs = 1
sequence_length = 512
{hyper}
"""
RL = """
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "http://127.0.0.1:1"
[model]
base = "Qwen/Qwen3-VL-4B-Instruct"
trainer_mode = "lora"
label = "x"
{model}
[rollout]
env_name = "e"
max_turns = 1
[training]
iterations_per_epoch = 1
batch_size = 4
group_size = 4
"""
SEES = "Qwen/Qwen3-VL-2B-Instruct"


def resolved(text: str) -> ResolvedJob:
    return resolve_job(read_toml(text, name="j.toml"), overrides=Overrides(), registry=Registry())


def test_rows_of_a_model_that_sees_pass_one_at_a_time_and_a_step_keeps_its_rows() -> None:
    found = resolved(SFT.format(model=SEES, hyper="per_device_batch = 4\ngradient_accumulation_steps = 2"))
    job = found.job
    assert isinstance(job, SftJob)
    assert (job.batch_size, job.micro_batch_tokens) == (8, 512)
    assert found.origins["micro_batch_tokens"] == "registry"
    (said,) = [w for w in found.warnings if "per_device_batch" in w]
    assert "j.toml:12 [hyperparameters].per_device_batch = 4 becomes 1 a pass, accumulated 8 times" in said


def test_what_a_model_that_sees_needs_is_added_and_said() -> None:
    found = resolved(SFT.format(model=SEES, hyper=""))
    assert isinstance(found.job, SftJob)
    assert found.job.vision == VisionSettings(max_images_per_message=1, processor_id=SEES)
    assert found.job.lora is not None
    assert "visual" in found.job.lora.targets
    assert found.origins["vision.max_images_per_message"] == found.origins["lora.targets"] == "registry"
    assert any("is a vision model: the registry adds max_images_per_message = 1" in w for w in found.warnings)


def test_what_an_rl_file_says_itself_holds() -> None:
    found = resolved(RL.format(model="max_images_per_message = 3"))
    assert isinstance(found.job, RlJob)
    assert found.job.vision == VisionSettings(max_images_per_message=3, processor_id="Qwen/Qwen3-VL-4B-Instruct")
    assert found.origins["vision.max_images_per_message"] == "j.toml:12 [model].max_images_per_message"


def test_a_text_model_is_left_alone() -> None:
    found = resolved(SFT.format(model="Qwen/Qwen3-0.6B", hyper="per_device_batch = 4"))
    assert isinstance(found.job, SftJob)
    assert found.job.vision is None
    assert not [w for w in found.warnings if "per_device_batch" in w or "registry" in w]


EVAL = """
[eval]
model = "{model}"
seeds = [1]
task_app_url = "http://127.0.0.1:1"
{keys}
"""
TEXT = "Qwen/Qwen3-0.6B"
RL_OF_TEXT = RL.replace("Qwen/Qwen3-VL-4B-Instruct", TEXT)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (RL_OF_TEXT.format(model="supports_vision = true"), "[model].supports_vision", "supports_vision = true"),
        (
            RL_OF_TEXT.format(model="") + "supports_vision = true",
            "[training].supports_vision",
            "supports_vision = true",
        ),
        (RL_OF_TEXT.format(model="") + "[rollout.policy_config]\nuse_vision = true", "use_vision", "use_vision = true"),
        (
            RL_OF_TEXT.format(model="") + "[rollout.policy_config]\nimage_only_mode = true",
            "[rollout.policy_config].image_only_mode",
            "image_only_mode = true",
        ),
        (EVAL.format(model=TEXT, keys="use_vision = true"), "[eval].use_vision", "use_vision = true"),
        (EVAL.format(model=TEXT, keys="image_only_mode = true"), "[eval].image_only_mode", "image_only_mode = true"),
        (
            EVAL.format(model=TEXT, keys="[eval.policy_config]\nuse_vision = true"),
            "[eval.policy_config].use_vision",
            "use_vision = true",
        ),
        (
            SFT.format(model=TEXT, hyper="[model_config]\nsupports_vision = true"),
            "[model_config].supports_vision",
            "supports_vision = true",
        ),
        (
            SFT.format(model=TEXT, hyper="").replace("[job]", '[job]\nmodalities = ["text", "image"]'),
            "[job].modalities",
            'modalities = ["text", "image"]',
        ),
    ],
)
def test_images_for_a_model_that_sees_none_are_one_problem_at_their_key(text: str, where: str, what: str) -> None:
    with pytest.raises(UserError) as caught:
        resolved(text)
    [problem] = caught.value.problems
    assert problem.where.endswith(where)
    assert problem.what == f"{what}, and 'Qwen/Qwen3-0.6B' sees no images"
    assert "Qwen3-VL" in problem.expected


def test_several_keys_that_ask_for_images_are_one_problem_that_names_them_all() -> None:
    with pytest.raises(UserError) as caught:
        resolved(RL_OF_TEXT.format(model="supports_vision = true") + "[rollout.policy_config]\nuse_vision = true")
    [problem] = caught.value.problems
    assert "([rollout.policy_config].use_vision requests images too)" in problem.what


def test_what_says_no_to_images_is_no_problem_of_a_text_model() -> None:
    keys = "use_vision = false\nimage_only_mode = false"
    found = resolved(RL_OF_TEXT.format(model="supports_vision = false") + f"[rollout.policy_config]\n{keys}")
    assert isinstance(found.job, RlJob)
    assert found.job.rollout.policy_config == {"use_vision": False, "image_only_mode": False}
    assert not [w for w in found.warnings if "vision" in w or "image" in w]


def test_a_limit_on_images_has_no_effect_on_a_model_that_sees_none() -> None:
    warnings = resolved(RL_OF_TEXT.format(model="max_images_per_message = 3")).warnings
    assert "j.toml:12 [model].max_images_per_message has no effect: 'Qwen/Qwen3-0.6B' sees no images" in warnings


def test_a_model_that_sees_is_not_to_be_called_blind() -> None:
    with pytest.raises(UserError, match="supports_vision = false, and 'Qwen/Qwen3-VL-4B-Instruct' is a vision model"):
        resolved(RL.format(model="supports_vision = false"))


def test_what_an_sft_file_says_of_its_images_holds() -> None:
    found = resolved(SFT.format(model=SEES, hyper="[model_config]\nmax_images_per_message = 4"))
    assert isinstance(found.job, SftJob)
    assert found.job.vision == VisionSettings(max_images_per_message=4, processor_id=SEES)


def test_an_sft_job_has_a_section_of_its_model() -> None:
    said = "[model]\nmax_images_per_message = 4\nfreeze_vision_tower = false"
    text = SFT.format(model=SEES, hyper=said).replace('variety = "lora"', 'variety = "fft"')
    found = resolved(text)
    assert isinstance(found.job, SftJob)
    assert found.job.vision == VisionSettings(max_images_per_message=4, processor_id=SEES, freeze_vision_tower=False)


def test_an_adapter_does_not_train_the_tower() -> None:
    with pytest.raises(UserError, match=r"freeze_vision_tower = false, and the job trains an adapter.*target_modules"):
        resolved(SFT.format(model=SEES, hyper="[model]\nfreeze_vision_tower = false"))
    with pytest.raises(UserError, match=r"\[model\].freeze_vision_tower.*trains an adapter"):
        resolved(RL.format(model="freeze_vision_tower = false"))


def test_an_evaluation_of_a_model_that_sees_has_its_cap() -> None:
    text = f'[eval]\nmodel = "{SEES}"\nseeds = [1]\ntask_app_url = "http://127.0.0.1:1"\n'
    found = resolved(text)
    assert isinstance(found.job, EvalJob)
    assert found.job.vision == VisionSettings(max_images_per_message=1, processor_id=SEES)
    assert not any("vision" in warning for warning in found.warnings)


def test_a_message_keeps_as_many_images_as_an_observation_is_asked_to_have() -> None:
    asked = RL.format(model="").replace("max_turns = 1", "max_turns = 1\nmax_images_per_step = 3")
    found = resolved(asked)
    assert isinstance(found.job, RlJob)
    assert found.job.vision == VisionSettings(max_images_per_message=3, processor_id="Qwen/Qwen3-VL-4B-Instruct")
    text = asked.replace('label = "x"', 'label = "x"\nmax_images_per_message = 2')
    with pytest.raises(UserError, match=r"max_images_per_step = 3, and a message keeps the first 2 images.*= 3"):
        resolved(text)


def test_an_evaluation_says_how_many_images_a_message_keeps() -> None:
    text = f'[eval]\nmodel = "{SEES}"\nseeds = [1]\ntask_app_url = "http://127.0.0.1:1"\nmax_images_per_message = 4\n'
    found = resolved(text)
    assert isinstance(found.job, EvalJob)
    assert found.job.vision == VisionSettings(max_images_per_message=4, processor_id=SEES)


def test_the_images_of_a_prompt_are_limited_where_the_engine_is_told_so() -> None:
    limit = "[vllm.limit_mm_per_prompt]\nimage = {}\nvideo = 0"
    found = resolved(RL.format(model="") + limit.format(2))
    assert isinstance(found.job, RlJob)
    assert found.job.vision is not None
    assert found.job.vision.max_images_per_prompt == 2
    assert not [w for w in found.warnings if "vllm" in w]
    with pytest.raises(UserError, match=r"image = 2, and a message alone keeps 3 images"):
        resolved(RL.format(model="max_images_per_message = 3") + limit.format(2))
    (said,) = [w for w in resolved(RL_OF_TEXT.format(model="") + limit.format(2)).warnings if "limit_mm" in w]
    assert "[vllm.limit_mm_per_prompt].image has no effect: 'Qwen/Qwen3-0.6B' sees no images" in said
