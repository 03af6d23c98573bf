"""What a job file becomes: defaults, flags, clamps, and where each value came from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from synth.errors import UserError
from synth.events import LoraShape, ModelRef
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.eval import EvalJob
from synth.methods.job import ResolvedJob, job_from_data, job_to_data
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob
from synth.models import Registry

CONFIGS = Path(__file__).parents[3] / "configs" / "demo"
RL = """\
[services]
task_url = "http://127.0.0.1:8001/"
[model]
base = "tiny-qwen3"
[rollout]
env_name = "math"
[training]
iterations_per_epoch = 3
"""
SFT = '[job]\nmodel = "tiny-qwen3"\ndata = "file_1"\n'


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(tmp_path)


def resolved(text: str, registry: Registry, overrides: Overrides | None = None) -> ResolvedJob:
    return resolve_job(read_toml(text, name="job.toml"), overrides=overrides or Overrides(), registry=registry)


def rl(text: str, registry: Registry, overrides: Overrides | None = None) -> RlJob:
    job = resolved(text, registry, overrides).job
    assert isinstance(job, RlJob)
    return job


def sft(text: str, registry: Registry, overrides: Overrides | None = None) -> SftJob:
    job = resolved(text, registry, overrides).job
    assert isinstance(job, SftJob)
    return job


def test_the_demo_sft_is_the_recipe_that_was_measured(registry: Registry) -> None:
    job = sft((CONFIGS / "sft.toml").read_text(), registry, Overrides(training_file="file_1"))
    assert (job.steps, job.batch_size, job.lr, job.schedule) == (1000, 32, 5e-3, "cosine")
    assert (job.min_lr_ratio, job.warmup_steps, job.betas, job.weight_decay) == (0.02, 20, (0.9, 0.95), 0.0)
    assert (job.mode, job.lora, job.model) == ("full", None, "tiny-qwen3")


def test_the_demo_rl_is_the_recipe_that_was_measured(registry: Registry) -> None:
    overrides = Overrides(model="fft:tiny-qwen3:job_1", seed=3)
    job = rl((CONFIGS / "rl.toml").read_text(), registry, overrides)
    assert (job.iterations, job.batch_size, job.group_size, job.minibatches) == (30, 16, 8, 2)
    assert (job.lr, job.schedule, job.warmup_ratio) == (2e-4, "constant", 0.0)
    assert (job.clip_low, job.clip_high) == (3e-4, 4e-4)
    assert (job.rollout.sampling.temperature, job.rollout.sampling.max_tokens) == (1.0, 32)
    assert (job.model, job.base_model, job.seed) == ("fft:tiny-qwen3:job_1", "tiny-qwen3", 3)


@pytest.mark.parametrize("name", ["sft", "rl", "rl_long", "eval"])
def test_the_demo_files_resolve_without_a_flag_or_a_warning(name: str, registry: Registry) -> None:
    overrides = Overrides(training_file="file_1") if name == "sft" else Overrides()
    assert resolved((CONFIGS / f"{name}.toml").read_text(), registry, overrides).warnings == []


def test_a_resolved_job_survives_json(registry: Registry) -> None:
    for text in (RL, SFT, (CONFIGS / "eval.toml").read_text()):
        job = resolved(text, registry).job
        assert job_from_data(msgspec.json.decode(msgspec.json.encode(job_to_data(job)))) == job


def test_origins_are_the_line_the_flag_the_registry_or_a_default(registry: Registry) -> None:
    text = RL + "[lora]\nr = 4\n"
    origins = resolved(text, registry, Overrides(seed=7, task_url="http://127.0.0.1:9")).origins
    assert origins["lora.r"] == "job.toml:10 [lora].r"
    assert origins["iterations"] == "job.toml:8 [training].iterations_per_epoch"
    assert origins["lora.targets"] == "registry"
    assert origins["seed"] == "--seed"
    assert origins["rollout.task_url"] == "--task-url"
    assert origins["lr"] == "default"


def test_the_model_flag_replaces_whatever_the_file_names(registry: Registry) -> None:
    both = RL.replace("base =", 'source = "fft:tiny-qwen3:job_1"\nbase =')
    assert rl(both, registry, Overrides(model="rl:tiny-qwen3:job_9")).model == "rl:tiny-qwen3:job_9"


def test_a_policy_section_may_name_the_model(registry: Registry) -> None:
    text = RL.replace('[model]\nbase = "tiny-qwen3"', '[policy]\nmodel_name = "tiny-qwen3"\ntemperature = 0.5')
    job = rl(text, registry)
    assert (job.model, job.rollout.sampling.temperature) == ("tiny-qwen3", 0.5)


def test_minibatches_are_at_most_the_rollouts_of_a_batch(registry: Registry) -> None:
    small = resolved(RL + "batch_size = 1\ngroup_size = 3\n", registry)
    assert isinstance(small.job, RlJob)
    assert (small.job.minibatches, small.origins["minibatches"]) == (3, "default")
    assert not [w for w in small.warnings if "minibatches" in w]
    assert rl(RL + "batch_size = 1\ngroup_size = 4\n", registry).minibatches == 4
    assert rl(RL + "batch_size = 1\ngroup_size = 4\nminibatches = 4\n", registry).minibatches == 4
    with pytest.raises(UserError) as caught:
        resolved(RL + "batch_size = 1\ngroup_size = 3\nminibatches = 4\n", registry)
    [problem] = caught.value.problems
    assert (problem.where, problem.expected) == ("job.toml:11 [training].minibatches", "at most 3")


def test_rl_defaults_are_those_of_the_design(registry: Registry) -> None:
    job = rl(RL, registry)
    assert (job.mode, job.lr, job.minibatches, job.group_size, job.warmup_ratio) == ("full", 1e-6, 4, 8, 0.05)
    assert (job.async_level, job.max_staleness, job.advantage_std) == (1, 1, True)
    assert (job.rollout.max_turns, job.rollout.failure_reward, job.rollout.sampling.max_tokens) == (1, 0.0, 512)
    assert job.rollout.task_url == "http://127.0.0.1:8001"


@pytest.mark.parametrize(
    ("loss", "clip", "truncation"),
    [
        ("gspo", (3e-4, 4e-4), 2.0),
        ("gspo_token", (3e-4, 4e-4), 2.0),
        ("grpo", (0.2, 0.28), 2.0),
        ("dppo", (0.2, 0.2), 20.0),
        ("cispo", (1.0, 3.0), 2.0),
    ],
)
def test_a_loss_is_named_by_its_key_or_its_variety_and_brings_its_clip(
    loss: str, clip: tuple[float, float], truncation: float, registry: Registry
) -> None:
    variety = f'[algorithm]\ntype = "online"\nmethod = "policy_gradient"\nvariety = "{loss}"\n'
    for text in (f'loss = "{loss}"\n', variety):
        job = rl(RL + text, registry)
        assert (job.loss, (job.clip_low, job.clip_high), job.token_truncation) == (loss, clip, truncation)
    assert rl(RL + f'loss = "{loss}"\nclip_high = 0.005\n', registry).clip_high == 0.005


def test_the_loss_of_the_training_table_wins_over_the_variety(registry: Registry) -> None:
    variety = '[algorithm]\ntype = "online"\nmethod = "policy_gradient"\nvariety = "gspo"\n'
    checked = resolved(RL + 'loss = "dppo"\n' + variety, registry)
    assert isinstance(checked.job, RlJob)
    assert checked.job.loss == "dppo"
    assert checked.warnings == ["job.toml:13 [algorithm].variety has no effect: [training].loss decides"]


def test_a_clip_of_another_loss_is_warned_about(registry: Registry) -> None:
    text = RL + 'loss = "grpo"\nclip_low = 3e-4\nclip_high = 0.3\n'
    assert resolved(text, registry).warnings == [
        "job.toml:10 [training].clip_low = 0.0003 is far from 0.2, the usual value of grpo"
    ]


SHARED = '[reference]\nplacement = "shared"\n'


def test_refills_have_seeds_of_their_own_and_only_where_they_are_asked_for(registry: Registry) -> None:
    plain, sampling = rl(RL, registry), rl(RL + "dynamic_sampling = true\n", registry)
    assert (plain.dynamic_sampling, plain.refill_seeds_of(1)) == (False, [])
    drawn = [seed for k in range(1, 5) for seed in (*sampling.seeds_of(k), *sampling.refill_seeds_of(k))]
    assert len(set(drawn)) == len(drawn) == 4 * 3 * sampling.batch_size
    assert sampling.seeds_of(3) == sampling.seeds_of(3)


def test_a_reference_is_where_the_file_says_when_there_is_a_kl_term(registry: Registry) -> None:
    job = rl(RL + "kl_beta = 0.01\n" + SHARED + "[lora]\nr = 4\n", registry)
    assert (job.kl_beta, job.reference) == (0.01, "shared")
    # The published client writes `none` into the table that its user left out.
    topology = '[reference]\nplacement = "none"\n[topology]\nreference_placement = "dedicated"\n'
    assert rl(RL + "kl_beta = 0.01\n" + topology, registry).reference == "dedicated"


def test_a_reference_that_nothing_is_measured_against_is_left_out_with_a_warning(registry: Registry) -> None:
    checked = resolved(RL + SHARED, registry)
    assert isinstance(checked.job, RlJob)
    assert checked.job.reference == "none"
    assert checked.warnings == [
        "job.toml:10 [reference].placement has no effect: [training].kl_beta is 0, so there is no KL term"
    ]


def test_a_shared_reference_of_a_policy_without_adapter_is_said_to_be_a_copy(registry: Registry) -> None:
    (warning,) = resolved(RL + "kl_beta = 0.01\n" + SHARED, registry).warnings
    assert 'job.toml:11 [reference].placement = "shared" is a frozen copy' in warning


def test_lora_has_a_higher_rate_and_rl_forces_its_dropout_off(registry: Registry) -> None:
    checked = resolved(RL + "[lora]\nr = 8\ndropout = 0.1\n", registry)
    job = checked.job
    assert isinstance(job, RlJob)
    assert job.lora is not None
    assert (job.mode, job.lr, job.lora.r, job.lora.dropout) == ("lora", 1e-5, 8, 0.0)
    assert job.lora.targets == "all-linear"
    assert any("dropout" in w for w in checked.warnings)


def test_top_p_and_top_k_are_clamped_off_while_training(registry: Registry) -> None:
    checked = resolved(RL + "[rollout.policy_config]\ntop_p = 0.95\ntop_k = 20\nstyle = 'terse'\n", registry)
    assert isinstance(checked.job, RlJob)
    assert (checked.job.rollout.sampling.top_p, checked.job.rollout.sampling.top_k) == (1.0, 0)
    assert checked.job.rollout.policy_config == {"style": "terse"}
    assert len(checked.warnings) == 2
    assert "[rollout.policy_config].top_p = 0.95 becomes 1.0 (off): while training" in checked.warnings[0]


def test_an_evaluation_job_may_sample_as_it_likes(registry: Registry) -> None:
    text = '[eval]\nmodel = "tiny-qwen3"\nseeds = [1]\ntask_app_url = "http://x"\n[eval.policy_config]\ntop_p = 0.9\n'
    job = resolved(text, registry).job
    assert isinstance(job, EvalJob)
    assert job.rollout.sampling.top_p == 0.9


def test_greedy_training_is_refused(registry: Registry) -> None:
    with pytest.raises(UserError, match="nothing can be learned"):
        resolved(RL + "[rollout.policy_config]\ntemperature = 0\n", registry)


def test_a_misspelt_policy_config_key_is_passed_on_with_a_warning(registry: Registry) -> None:
    checked = resolved(RL + "[rollout.policy_config]\ntemprature = 0.5\n", registry)
    assert checked.warnings == [
        "job.toml:10 [rollout.policy_config].temprature is passed on to the task app; did you mean 'temperature'?"
    ]


def test_the_smaller_bound_on_concurrency_and_tokens_holds(registry: Registry) -> None:
    text = RL + "async_semaphore_max = 4\nmax_completion_tokens = 64\n"
    job = rl(text + "[rollout.policy_config]\nmax_tokens = 100\n", registry)
    assert (job.rollout.max_concurrent_rollouts, job.rollout.sampling.max_tokens) == (4, 64)


def test_a_staleness_below_the_async_level_is_refused(registry: Registry) -> None:
    with pytest.raises(UserError, match="async_level = 2"):
        resolved(RL + "async_level = 2\nmax_staleness = 1\n", registry)


def test_training_seeds_avoid_evaluation_seeds(registry: Registry) -> None:
    job = rl(RL + "[evaluation]\nseeds = [0, 5]\nevery_n_iters = 1\n", registry)
    drawn = {s for k in range(1, 20) for s in job.seeds_of(k)}
    assert not drawn & {0, 5}


def test_listed_seeds_that_are_also_evaluated_are_warned_about(registry: Registry) -> None:
    text = RL + "[data]\nseeds = '0-9'\n[evaluation]\nseeds = [3]\nevery_n_iters = 1\n"
    assert any("shares 1 seeds" in w for w in resolved(text, registry).warnings)


def test_evaluation_takes_the_first_instances_of_its_seeds(registry: Registry) -> None:
    job = rl(RL + "[evaluation]\nseeds = '10-19'\ninstances = 3\nevery_n_iters = 2\n", registry)
    assert job.evaluation is not None
    assert (job.evaluation.seeds, job.evaluation.every_n_iters) == ([10, 11, 12], 2)
    job = rl(RL + "[evaluation]\ninstances = 2\nevery_n_iters = 2\n", registry)
    assert job.evaluation is not None
    assert job.evaluation.seeds == [1_000_000, 1_000_001]


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("", "full"),
        ('[training]\nmode = "lora"\n', "lora"),
        ("[training]\nuse_qlora = true\n", "qlora"),
        ('[training]\nmode = "lora"\nuse_qlora = true\n', "qlora"),
        ('[training]\nuse_qlora = true\n[hyperparameters]\ntrain_kind = "peft"\n', "qlora"),
        ('[algorithm]\ntype = "offline"\nmethod = "sft"\nvariety = "qlora"\n', "qlora"),
        ('[algorithm]\ntype = "offline"\nmethod = "sft"\nvariety = "qlora"\n[training]\nmode = "lora"\n', "qlora"),
        ('[algorithm]\ntype = "offline"\nmethod = "sft"\nvariety = "qlora"\n[training]\nuse_qlora = false\n', "lora"),
        ('[hyperparameters]\ntrain_kind = "peft"\n', "lora"),
        ("[lora]\nr = 4\n", "lora"),
        ('[training]\nmode = "full_finetune"\n[lora]\nr = 4\n', "full"),
        ('[algorithm]\ntype = "offline"\nmethod = "sft"\nvariety = "lora"\n', "lora"),
    ],
)
def test_every_way_to_ask_for_an_adapter_works(text: str, mode: str, registry: Registry) -> None:
    assert sft(SFT + text, registry).mode == mode


def test_a_base_in_four_bits_is_said_to_be_the_one_that_is_served(registry: Registry) -> None:
    for text in (SFT + "[training]\nuse_qlora = true\n", RL.replace("[rollout]", 'trainer_mode = "qlora"\n[rollout]')):
        found = resolved(text, registry)
        assert isinstance(found.job, RlJob | SftJob)
        assert (found.job.mode, found.job.weights_kind) == ("qlora", "lora")
        assert found.job.lora is not None
        [said] = [w for w in found.warnings if "4 bits" in w]
        assert "is also served" in said
        assert found.origins["mode"] in said
    assert found.job.lr == 1e-5


def test_full_and_four_bits_contradict_each_other(registry: Registry) -> None:
    with pytest.raises(UserError, match="use_qlora") as caught:
        sft(SFT + '[training]\nmode = "full_finetune"\nuse_qlora = true\n', registry)
    assert "keep one of the two" in str(caught.value)


SHAPE = LoraShape(r=4, alpha=8, targets="all-linear")
QLORA = SFT + "[training]\nuse_qlora = true\n[lora]\nr = 4\nalpha = 8\n"


def test_only_what_lies_below_the_adapter_is_rounded(registry: Registry) -> None:
    base = ModelRef(id="tiny-qwen3", path="/models/tiny-qwen3")
    adapter = ModelRef(id="peft:tiny-qwen3:job_1", kind="lora", base=base, lora=SHAPE)
    job, other = sft(QLORA, registry), sft(QLORA.replace("r = 4", "r = 2"), registry)
    assert job.start_model(base) == replace(base, rounded="nf4")
    assert job.start_model(adapter) == replace(adapter, base=replace(base, rounded="nf4"))  # continued
    assert other.start_model(adapter) == replace(adapter, rounded="nf4")  # merged first
    assert sft(SFT, registry).start_model(adapter) == adapter


def test_a_job_knows_the_id_of_the_model_it_makes(registry: Registry) -> None:
    assert sft(SFT, registry).result_id("job_1") == "fft:tiny-qwen3:job_1"
    assert sft(SFT + "[lora]\nr = 4\n", registry).result_id("job_1") == "peft:tiny-qwen3:job_1"
    assert sft(SFT + "[training]\nuse_qlora = true\n", registry).result_id("job_1") == "qft:tiny-qwen3:job_1"
    chained = rl(RL, registry, Overrides(model="fft:tiny-qwen3:job_1"))
    assert chained.result_id("job_2", checkpoint="step_20") == "rl:tiny-qwen3:job_2:step_20"


def test_a_model_that_may_not_do_rl_is_refused_by_name(registry: Registry) -> None:
    with pytest.raises(UserError, match="cannot be trained with RL"):
        rl(RL, registry, Overrides(model="Qwen/Qwen3-32B"))


def test_an_experimental_model_wants_to_be_allowed(registry: Registry) -> None:
    model = "Qwen/Qwen3-4B-Thinking-2507"
    with pytest.raises(UserError, match="experimental"):
        rl(RL, registry, Overrides(model=model))
    assert rl(RL, registry, Overrides(model=model, allow_experimental=True)).model == model


def test_an_evaluation_that_names_no_environment_leaves_it_to_the_task_app(registry: Registry) -> None:
    text = '[eval]\nmodel = "tiny-qwen3"\nseeds = "0-3"\ntask_app_url = "http://127.0.0.1:8001"\n'
    for asked, expected in (("", None), ('app_id = "math"\n', "math"), ('app_id = "a"\nenv_name = "b"\n', "b")):
        job = resolved(text + asked, registry).job
        assert isinstance(job, EvalJob)
        assert job.rollout.env_name == expected


def test_every_rl_job_is_watched_unless_its_file_says_no(registry: Registry) -> None:
    watch = rl(RL, registry).watch
    assert watch is not None
    assert (watch.action, watch.patience, watch.entropy_low) == ("warn", 5, 0.1)
    watch = rl(RL + '[training.watch]\naction = "stop"\nentropy_low = 0\n', registry).watch
    assert watch is not None
    assert (watch.action, watch.entropy_low, watch.reward_drop) == ("stop", 0, 0.6)
    off = resolved(RL + '[training.watch]\nenabled = false\naction = "stop"\n', registry)
    assert isinstance(off.job, RlJob)
    assert off.job.watch is None
    assert off.warnings == ["job.toml:11 [training.watch].action has no effect: enabled = false"]
    assert off.origins["watch"] == "job.toml:10 [training.watch].enabled"


def test_every_version_has_a_canary_unless_the_file_says_which(registry: Registry) -> None:
    assert rl(RL, registry).verify_every_k == 1
    asked = resolved(f"{RL}[training.weight_sync]\nverify_every_k = 4\n", registry)
    assert isinstance(asked.job, RlJob)
    assert asked.job.verify_every_k == 4
    assert asked.origins["verify_every_k"] == "job.toml:10 [training.weight_sync].verify_every_k"
    assert not [w for w in asked.warnings if "verify_every_k" in w]


def test_what_is_evaluated_on_is_listed_in_the_jobs_event_and_has_to_fit(registry: Registry) -> None:
    text = '[eval]\nmodel = "tiny-qwen3"\ntask_app_url = "http://127.0.0.1:9"\nseeds = "0-{}"\n'
    job = resolved(text.format(99_999), registry).job
    assert isinstance(job, EvalJob)
    assert len(job.seeds) == 100_000
    with pytest.raises(UserError, match="200,000 seeds to evaluate on take 1,400,000 bytes"):
        resolved(text.format(199_999), registry)
    with pytest.raises(UserError, match="seeds to evaluate on take"):
        rl(RL + f'[evaluation]\nevery_n_iters = 1\nseeds = "0-{10**12}"\n', registry)


def test_the_time_that_a_job_gives_its_rollouts_is_that_of_all_their_tries(registry: Registry) -> None:
    more = "max_concurrent_rollouts = 4\nrollout_timeout_s = 3600\nmax_retries = 1\n"
    job = rl(RL.replace("[training]", f"{more}[training]"), registry)
    assert job.rollout.longest_s(9) == 3 * 2 * 3600
    assert job.most_rollouts == job.batch_size * job.group_size
