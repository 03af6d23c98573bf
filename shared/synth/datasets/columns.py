"""The keys of a row, one table for every shape; docs/datasets.md shows it.

A key of a row is read by its shape, or has the rule of `row_rules` in every shape, or is an annotation: it describes
the row, no model gets it, and the file's record counts it by name. Any other key refuses the row, as its data may be
intended for training.
"""

from __future__ import annotations

from typing import Any

from synth.datasets.turns import is_empty

ANNOTATIONS = frozenset(
    name
    for names in (
        # The row's name or id.
        "id _id idx index uid uuid row_id sample_id example_id conversation_id conv_id session_id thread_id request_id",
        "prompt_id question_id task_id trace_id custom_id hash __index_level_0__",
        # The row's source.
        "source sources data_source dataset dataset_name origin subset split url license author model model_name",
        "generator generation_model chosen_model rejected_model annotator env_name seed",
        # When, in which language, about what.
        "created created_at updated_at timestamp date version language lang category categories subcategory topic",
        "topics domain subject task task_type type name title difficulty level tags keywords",
        # How good or large it is.
        "score scores quality rating ratings score_chosen score_rejected chosen_score rejected_score chosen_rating",
        "rejected_rating reward rewards num_turns turn n_tokens num_tokens token_count toxic redacted",
        # The source of the answer, or its measures.
        "problem question solution answer ground_truth expected_answer reference_answer problem_type question_type",
        # The owner's notes.
        "metadata meta info extra_info notes comment comments",
        # A request's settings for tools that no chat template shows.
        "tool_choice parallel_tool_calls",
    )
    for name in names.split()
)
#: Content that no model here takes.
MEDIA = ("videos", "video", "audios", "audio")
#: Keys that other trainers read and this one does not, with the reason.
REFUSED = {
    **dict.fromkeys(MEDIA, "models here see text and images"),
    **dict.fromkeys(("objects",), "boxes are not drawn into a row; write them in its texts"),
    **dict.fromkeys(("rejected_images", "chosen_images"), "both sides of a pair are shown the same images"),
    **dict.fromkeys(("text", "segments"), 'text without turns; expected a conversation, such as {"messages": […]}'),
    **dict.fromkeys(
        ("input_ids", "labels", "attention_mask"), "tokens of another tokenizer; expected the conversation as text"
    ),
    **dict.fromkeys(("chat_template", "chat_template_kwargs"), "a job renders all rows with the model's own template"),
    **dict.fromkeys(("margin",), "pairs have no margins here"),
    **dict.fromkeys(
        ("completions", "answers", "responses"), "several replies; expected one, or a chosen and a rejected"
    ),
}


class Columns:
    """The keys of a row. A key that the shape takes is marked as read."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self._taken = set[str]()

    def holds(self, name: str) -> bool:
        """Return whether the row has a value of this name, an empty one too."""
        return self.data.get(name) is not None

    def take(self, name: str) -> Any:
        """Return the value of a key that is read, or None."""
        self._taken.add(name)
        return self.data.get(name)

    def first(self, *names: str) -> str | None:
        """Return the first of these names that the row has."""
        for name in names:
            if self.data.get(name) is not None:
                return name
        return None

    def rest(self) -> tuple[list[str], list[str]]:
        """Return the annotations among the keys that were not read, and the other unread keys, without empty values."""
        annotations, unread = list[str](), list[str]()
        for name, value in self.data.items():
            if name not in self._taken and not is_empty(value):
                (annotations if name in ANNOTATIONS else unread).append(name)
        return annotations, unread
