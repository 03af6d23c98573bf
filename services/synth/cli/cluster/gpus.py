"""Which GPUs of this machine each service of the embedded cluster computes on (`single_node_split`)."""

from __future__ import annotations

from synth.cli.errors import CliError

#: Of a service, by its name: what its environment says beside the rest.
Environments = dict[str, dict[str, str]]


def split_gpus(visible: list[str], *, vllm: int | None, training: int | None, ref: int | None) -> Environments:
    """The environments in which inference and the trainer each see GPUs of their own.

    visible: as `CUDA_VISIBLE_DEVICES` names them. vllm, training, ref: how many for inference, for training, and for a
    dedicated reference model, which lives in the trainer; None: not said. When nothing is, several GPUs are one for
    inference, which one process computes on, and the rest for training; one or none is left to all. Training is put on
    GPUs when something is said; else by SYNTH_DEVICE, as ever.
    Raises `CliError` when they do not suffice.
    """
    have, asked = len(visible), not (vllm is None and training is None and ref is None)
    if not asked and have < 2:
        return {}
    ref = ref or 0
    if vllm is None:
        vllm = 1 if training is None else have - training - ref
    if training is None:
        training = have - vllm - ref
    if min(vllm, training) < 1 or vllm + training + ref > have:
        said = f"{vllm} for vLLM, {training} for training" + (f", {ref} for the reference" if ref else "")
        raise CliError(
            f"{have} GPUs cannot be shared out as {said}",
            expected="at least one each for vLLM and training, and no more than there are",
            fix="ask for fewer, or leave the numbers out",
            where="--gpus-for-vllm, --gpus-for-training, --gpus-for-ref",
        )
    trainer = {"CUDA_VISIBLE_DEVICES": ",".join(visible[vllm : vllm + training + ref])}
    if asked:
        trainer["SYNTH_DEVICE"] = "cuda"
    if ref:
        trainer |= {"SYNTH_RANKS": str(training), "SYNTH_REFERENCE_DEVICE": f"cuda:{training}"}
    return {"inference": {"CUDA_VISIBLE_DEVICES": ",".join(visible[:vllm])}, "trainer": trainer}
