"""A validator that knows what trains, which refuses jobs that do not fit there."""

from __future__ import annotations

import msgspec

from synth.events import JobRejected, JobValidated
from tests.service.jobs import RL, make_model_dir
from tests.service.process import running
from tests.service.validator.test_validator import outcome


async def test_a_job_that_cannot_fit_its_pool_is_rejected_with_what_would_make_it_fit(
    settings_of, bus_admin, bus_as, cluster_dir, tmp_path
):
    make_model_dir(cluster_dir)
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 192, "vocab_size": 320}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
    folder = cluster_dir / "models" / "tiny-sized"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(msgspec.json.encode({"model_type": "qwen3", **sizes, **heads}))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    config = RL.replace('"tiny-qwen3"', '"tiny-sized"')
    with running(
        "validator",
        settings_of("validator"),
        tmp_path / "log",
        SYNTH_TRAINER_MEMORY_BYTES=str(20 << 20),
        SYNTH_TRAINER_DEVICE="cpu",
        SYNTH_TRAINER_DTYPE="fp32",
    ):
        refused = await outcome(bus_as, config, name="rl.toml")
        assert isinstance(refused, JobRejected), refused
        [problem] = refused.problems
        assert problem.where == "rl.toml:9 [model].base"
        assert "training 'tiny-sized' takes" in problem.what
        assert problem.expected == "a job that takes at most 20.0 MiB"
        assert "micro_batch_tokens = " in problem.fix
        fewer = config.replace("batch_size = 2", "batch_size = 2\nmicro_batch_tokens = 1024")
        assert isinstance(await outcome(bus_as, fewer), JobValidated)
