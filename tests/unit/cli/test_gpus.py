"""The GPUs of a machine among the services of its cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.cli.cluster.gpus import Environments, split_gpus
from synth.cli.cluster.plan import choose_ports, make_plan
from synth.cli.cluster.state import ClusterState
from synth.cli.errors import CliError
from synth.runtime.gpus import visible_gpus


def seen(gpus: Environments) -> dict[str, str]:
    return {name: env["CUDA_VISIBLE_DEVICES"] for name, env in gpus.items()}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"inference": "0", "trainer": "1,2,3"}),
        ({"vllm": 2}, {"inference": "0,1", "trainer": "2,3"}),
        ({"training": 1}, {"inference": "0,1,2", "trainer": "3"}),
        ({"vllm": 1, "training": 2}, {"inference": "0", "trainer": "1,2"}),
        ({"ref": 1}, {"inference": "0", "trainer": "1,2,3"}),
    ],
)
def test_inference_and_training_have_gpus_of_their_own(asked: dict[str, int], expected: dict[str, str]) -> None:
    shares = {"vllm": None, "training": None, "ref": None} | asked
    assert seen(split_gpus(["0", "1", "2", "3"], **shares)) == expected


def test_training_is_put_on_gpus_by_whoever_shares_them_out() -> None:
    assert "SYNTH_DEVICE" not in split_gpus(["0", "1"], vllm=None, training=None, ref=None)["trainer"]
    assert split_gpus(["0", "1"], vllm=1, training=None, ref=None)["trainer"]["SYNTH_DEVICE"] == "cuda"


def test_a_reference_model_has_the_last_gpu_of_the_trainer() -> None:
    trainer = split_gpus(["4", "5", "6"], vllm=None, training=None, ref=1)["trainer"]
    assert trainer["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert (trainer["SYNTH_RANKS"], trainer["SYNTH_REFERENCE_DEVICE"]) == ("1", "cuda:1")


@pytest.mark.parametrize("visible", [[], ["0"]])
def test_what_cannot_be_shared_out_is_left_alone_unless_somebody_asks(visible: list[str]) -> None:
    assert split_gpus(visible, vllm=None, training=None, ref=None) == {}
    with pytest.raises(CliError, match="cannot be shared out") as caught:
        split_gpus(visible, vllm=1, training=None, ref=None)
    assert f"{len(visible)} GPUs" in str(caught.value)


def test_what_is_visible_is_what_cuda_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for written, expected in (("2,0", ["2", "0"]), ("", []), ("1,-1,3", ["1"]), ("GPU-8a3f", ["GPU-8a3f"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", written)
        assert visible_gpus() == expected


def test_each_service_is_started_with_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SYNTH_RANKS", "1")
    state = ClusterState(gpus=split_gpus(["0", "1", "2", "3"], vllm=None, training=2, ref=1))
    services = ("inference", "trainer", "rollouts")
    choose_ports(state, services, port=0)
    given = {spec.name: spec.env for spec in make_plan(state, tmp_path, services).services}
    assert (given["inference"]["CUDA_VISIBLE_DEVICES"], given["trainer"]["CUDA_VISIBLE_DEVICES"]) == ("0", "1,2,3")
    assert given["rollouts"].get("CUDA_VISIBLE_DEVICES") is None
    assert given["trainer"]["SYNTH_DEVICE"] == "cuda"
    assert given["trainer"]["SYNTH_RANKS"] == "1"  # what the user says holds
