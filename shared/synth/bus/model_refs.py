"""Where a model is: a base of the registry, or one that an earlier job of the organisation made, by the log."""

from __future__ import annotations

import difflib

from synth.bus.connection import Connection
from synth.bus.replay import replay
from synth.catalogue import subject_of
from synth.errors import Problem, UserError
from synth.events import ModelPublished, ModelRef
from synth.models import FineTunedId, Registry, parse_finetuned


async def find_model(bus: Connection, org: str, model_id: str, registry: Registry) -> ModelRef:
    """The model's reference. Raises `UserError`, with the nearest id that there is."""
    wanted = parse_finetuned(model_id)
    if wanted is None:
        spec = registry.find(model_id)
        return ModelRef(id=spec.id, path=spec.path or spec.id)
    published = await replay(bus.nc, [subject_of(ModelPublished, org, "*")], last_per_subject=True)
    models = [r.event.model for r in published if isinstance(r.event, ModelPublished)]
    found = next((m for m in models if names(wanted, m.id)), None)
    if found is None:
        raise UserError(_missing(wanted, [m.id for m in models]))
    return found


def names(wanted: FineTunedId, model_id: str) -> bool:
    """Whether `wanted` is this published model; `ft:` stands for any way of making it (decision 18)."""
    if str(wanted) == model_id:
        return True
    actual = parse_finetuned(model_id)
    if actual is None or wanted.prefix != "ft":
        return False
    return (wanted.base, wanted.job_id, wanted.checkpoint) == (actual.base, actual.job_id, actual.checkpoint)


def _missing(wanted: FineTunedId, ids: list[str]) -> Problem:
    same_job = [i for i in ids if (other := parse_finetuned(i)) and other.job_id == wanted.job_id]
    near = same_job or difflib.get_close_matches(str(wanted), ids, n=1)
    return Problem(
        what=f"the model {str(wanted)!r} has not been published",
        expected="a base model, or a fine-tuned model of your organisation whose job has succeeded",
        fix=f"did you mean {near[0]!r}?" if near else "`synthctl models ls` shows them",
        where="model",
    )
