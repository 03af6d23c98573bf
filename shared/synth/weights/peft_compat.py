"""peft without bitsandbytes.

peft imports bitsandbytes, and with it torch's compiler, wherever it is installed: 2 s in each process that has a LoRA
layer. It wants its layer classes alone, and ours (`synth.trainer.learner.model.qlora`) is a plain linear layer to peft.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator


@contextlib.contextmanager
def _hidden(module: str) -> Generator[None]:
    """Make `import module` fail inside the block, as if it were not installed."""
    there = sys.modules.get(module)
    # The documented entry for a module that cannot be imported.
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if there is not None:
            sys.modules[module] = there


with _hidden("bitsandbytes"):
    from peft import (
        LoraConfig,
        PeftModel,
        get_peft_model,
        get_peft_model_state_dict,  # pyright: ignore[reportUnknownVariableType]
    )
    from peft.import_utils import is_bnb_4bit_available, is_bnb_available
    from peft.tuners.tuners_utils import check_target_module_exists  # pyright: ignore[reportUnknownVariableType]
    from peft.utils import transformers_weight_conversion

    # peft remembers the answers.
    is_bnb_available()
    is_bnb_4bit_available()

# For many types with experts peft takes the `gate_proj`, `up_proj` and `down_proj` of dense layers and shared experts
# for the experts' weights, and trains these instead. Our adapters have the layers that they name.
transformers_weight_conversion._convert_peft_config_moe = (  # pyright: ignore[reportPrivateUsage]
    lambda peft_config, model: None
)

__all__ = ["LoraConfig", "PeftModel", "check_target_module_exists", "get_peft_model", "get_peft_model_state_dict"]
