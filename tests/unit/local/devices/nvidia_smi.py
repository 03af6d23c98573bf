"""A stand-in for `nvidia-smi`: a program on PATH that answers what the real one prints on a machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

_SCRIPT = """\
#!/bin/sh
echo "$*" >> {calls}
{before}
case "$1" in
  --query-gpu=*) cat {folder}/gpus ;;
  --query-compute-apps=*) cat {folder}/apps ;;
  -L) cat {folder}/listing ;;
  *) echo "ERROR: Option $1 is not recognized. Please run 'nvidia-smi -h'." >&2; exit 1 ;;
esac
"""


@dataclass(frozen=True)
class Smi:
    """The stand-in. gpus, apps, listing: what it prints. before: shell that runs first, such as `exit 9`."""

    gpus: str = ""
    apps: str = ""
    listing: str = ""
    before: str = ""

    def install(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Put it first on PATH; returns the file that gets a line for each call."""
        folder.mkdir(exist_ok=True)
        calls = folder / "calls"
        for name, text in (("gpus", self.gpus), ("apps", self.apps), ("listing", self.listing)):
            (folder / name).write_text(text)
        tool = folder / "nvidia-smi"
        tool.write_text(_SCRIPT.format(calls=calls, folder=folder, before=self.before))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return calls


def program(file: Path, text: str) -> Path:
    """A program that prints a text, in place of a Python that is asked for its build of torch or vLLM."""
    (file.parent / f"{file.name}.txt").write_text(text)
    file.write_text(f"#!/bin/sh\ncat {file}.txt\n")
    file.chmod(0o755)
    return file


#: As nvidia-smi prints `--query-gpu` of `probe._GPU_FIELDS`, and `--query-compute-apps`, as CSV without head and units.
H100S = Smi(
    gpus="0, GPU-2d2f7c1e-0a4b-4b6f-8a53-000000000000, NVIDIA H100 80GB HBM3, 81559, 1, 9.0, 580.65.06, Disabled\n"
    "1, GPU-2d2f7c1e-0a4b-4b6f-8a53-111111111111, NVIDIA H100 80GB HBM3, 81559, 71234, 9.0, 580.65.06, Disabled\n",
    apps="GPU-2d2f7c1e-0a4b-4b6f-8a53-111111111111, 4711, 71220, /usr/bin/python3\n",
)
RTX_4090 = Smi(
    gpus="0, GPU-9c8b7a6f-1111-2222-3333-444455556666, NVIDIA GeForce RTX 4090, 24564, 512, 8.9, 580.65.06, [N/A]\n",
    apps="GPU-9c8b7a6f-1111-2222-3333-444455556666, 1207, [N/A], /usr/lib/xorg/Xorg\n"
    "GPU-9c8b7a6f-1111-2222-3333-444455556666, 2301, 300, [Not Found]\n"
    "GPU-9c8b7a6f-1111-2222-3333-444455556666, 2302, 10, /opt/my app, the new one\n"
    "GPU-9c8b7a6f-1111-2222-3333-444455556666, [N/A], [N/A], [N/A]\n",
)
A100_MIG = Smi(
    gpus="0, GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, NVIDIA A100-SXM4-80GB, 81920, [N/A], 8.0, 580.65.06, Enabled\n"
    "1, GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2, NVIDIA A100-SXM4-80GB, 81920, 0, 8.0, 580.65.06, Disabled\n",
    listing="GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n"
    "  MIG 3g.40gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)\n"
    "  MIG 1g.10gb+me  Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)\n"
    "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2)\n",
)
A100_WITHOUT_SLICES = Smi(
    gpus="0, GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, NVIDIA A100-SXM4-80GB, 81920, [N/A], 8.0, 580.65.06, Enabled\n",
    listing="GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n",
)
#: A GPU whose memory is the machine's own.
UNIFIED = Smi(gpus="0, GPU-77778888-aaaa-bbbb-cccc-ddddeeeeffff, NVIDIA GB10, [N/A], [N/A], 12.1, 580.95.05, [N/A]\n")
NO_DRIVER = Smi(
    before="echo \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
    'latest NVIDIA driver is installed and running."; echo; exit 9'
)
MISMATCH = Smi(
    before="echo 'Failed to initialize NVML: Driver/library version mismatch'; "
    "echo 'NVML library version: 580.65'; exit 18"
)
OLD_DRIVER = Smi(before="echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2")
NO_DEVICES = Smi(before="echo 'No devices were found'; exit 6")
OTHER_ANSWER = Smi(gpus="NVIDIA H100, 81559 MiB\n")
HUNG = Smi(before="sleep 600")
