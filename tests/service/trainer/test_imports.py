"""What the start of a training process does not import."""

from __future__ import annotations

import subprocess
import sys


def test_an_adapter_without_qlora_does_not_load_bitsandbytes() -> None:
    """bitsandbytes imports torch's compiler, which would add seconds to the start of each process."""
    script = "import sys, synth.weights.peft_compat as p; p.LoraConfig(); sys.exit('bitsandbytes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
