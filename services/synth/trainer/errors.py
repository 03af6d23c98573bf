"""Why a training process stopped, in a form that its supervisor can act on."""

from __future__ import annotations

#: The code of a wait for a shared device that was too long: nothing is wrong with the job, and another attempt may run.
NO_TURN = "no_turn"

#: The code of a checkpoint that could not be written, as on a full disk: another attempt continues from the one before.
CHECKPOINT_FAILED = "checkpoint_failed"

#: The code of a job whose training the device cannot hold.
DOES_NOT_FIT = "does_not_fit"


class TrainingFailed(Exception):
    """Training cannot continue. `code` is stable, for programs; `detail` names the fault, its place and a fix.

    Codes: bad_message, bad_recipe, bad_model, bad_dataset, bad_batch, bad_image, processor_differs, adapter_differs,
    out_of_order, nan_loss, nan_gradient, bad_checkpoint, resume_mismatch, no_turn, checkpoint_failed, does_not_fit,
    bad_cache, disk_full, tokenise_crashed.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
