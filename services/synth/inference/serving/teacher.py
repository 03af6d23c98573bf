"""The check that the teacher of a job that is distilled reads the policy's tokens."""

from __future__ import annotations

from pathlib import Path

from synth.errors import Permanent


def check_same_tokenizer(policy: Path, teacher: Path, *, teacher_id: str) -> None:
    """Raise `Permanent` unless each token id means the same text to both models. policy, teacher: their folders.

    The ids of all tokens are compared, including tokens that were added to the vocabulary, but not how text is split
    into tokens: a teacher scores tokens that were sampled.
    """
    ours, theirs = _tokens(policy), _tokens(teacher)
    if ours == theirs:
        return
    ids = {token_id: token for token, token_id in theirs.items()}
    for token, token_id in sorted(ours.items(), key=lambda found: found[1]):
        if ids.get(token_id) != token:
            there = f"{ids[token_id]!r} to the teacher" if token_id in ids else "unknown to the teacher"
            what = f"token {token_id} is {token!r} to the policy and {there}"
            break
    else:
        what = f"the teacher has {len(theirs)} tokens and the policy {len(ours)}"
    raise Permanent(
        f"the teacher {teacher_id!r} has another tokenizer than the policy: {what}; expected a teacher with "
        "the policy's tokenizer, such as a larger model of its family; change [distillation] teacher"
    )


def _tokens(model_dir: Path) -> dict[str, int]:
    """Return the ids of a model's tokens by their text."""
    file = model_dir / "tokenizer.json"
    if not file.is_file():
        raise Permanent(
            f"the model in {model_dir.name!r} has no tokenizer.json, which teacher and policy are compared by"
        )
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(file.read_text(encoding="utf-8")).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises its own, which is a plain Exception
        raise Permanent(f"the tokenizer.json of {model_dir.name!r} cannot be read: {error}") from error
