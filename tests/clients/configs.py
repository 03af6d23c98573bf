"""Job files as the published clients want them: every table that either version insists on."""

from __future__ import annotations

from tests.clients.conftest import BASE


def sft(dataset: str, *, epochs: int = 1, base: str = BASE) -> str:
    """A full fine-tune. What the client does not pass on (steps, schedule) is left to the backend's defaults."""
    return f"""
[algorithm]
type = "offline"
method = "sft"
variety = "fft"

[job]
model = "{base}"
data = "{dataset}"

[compute]
gpu_type = "H100"
gpu_count = 1
nodes = 1

[training]
mode = "full_finetune"

[hyperparameters]
n_epochs = {epochs}
global_batch = 32
sequence_length = 128
learning_rate = 5e-3
warmup_ratio = 0.02
train_kind = "fft"
"""


def rl(model: str, *, iterations: int = 3) -> str:
    """GSPO on a task app that pays for letters. model: a fine-tuned id, or a base."""
    key = "source" if ":" in model else "base"
    return f"""
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"

[services]
task_url = "http://127.0.0.1:1"

[compute]
gpu_type = "H100"
gpu_count = 2

[compute.topology]
type = "single_node_split"
gpus_for_vllm = 1
gpus_for_training = 1
gpus_for_ref = 0
tensor_parallel = 1

[topology]
type = "single_node_split"
gpus_for_vllm = 1
gpus_for_training = 1
gpus_for_ref = 0
tensor_parallel = 1

[vllm]
tensor_parallel_size = 1
max_model_len = 2048

[reference]
placement = "none"

[model]
{key} = "{model}"
trainer_mode = "full"
label = "sums"

[rollout]
env_name = "letters"
policy_name = "letters"
max_turns = 1
episodes_per_batch = 64
max_concurrent_rollouts = 64

[rollout.policy_config]
max_tokens = 32

[training]
num_epochs = 1
iterations_per_epoch = {iterations}
max_turns = 1
batch_size = 8
group_size = 8
learning_rate = 2e-4

[evaluation]
instances = 4
every_n_iters = 2
seeds = [1000000, 1000001, 1000002, 1000003]

[tags]
made_by = "test-clients"
"""
