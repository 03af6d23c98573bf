"""What the calls of a rollout said, each message once."""

from __future__ import annotations

from synth.chat.messages import Conversation, FunctionCall, Message, MessageToolCall
from synth.transcripts.conversation_log import ConversationLog

SYSTEM = Message(role="system", content="Dig.")
ASK = Message(role="user", content="Where?")
CALLED = Message(
    role="assistant",
    tool_calls=[MessageToolCall(id="call_1", function=FunctionCall("look", '{"place": 2}'))],
    reasoning_content="Two is even.",
)
FOUND = Message(role="tool", content="sand", tool_call_id="call_1")


def test_a_call_that_goes_on_has_only_what_is_new():
    log = ConversationLog()
    tool = {"type": "function", "function": {"name": "look"}}
    first = log.record(1, Conversation([SYSTEM, ASK], [tool]), CALLED)
    assert (first.continues, first.kept, len(first.messages), first.tools) == (None, 0, 2, [tool])
    assert first.reply["reasoning_content"] == "Two is even."
    # The client sends the call back without its reasoning, renumbered, and with its arguments spelt otherwise.
    back = Message(
        role="assistant", content="", tool_calls=[MessageToolCall(id=7, name="look", arguments={"place": 2})]
    )
    second = log.record(2, Conversation([SYSTEM, ASK, back, FOUND], [tool]), Message(role="assistant", content="Done."))
    assert (second.continues, second.kept, second.tools) == (1, 3, None)
    assert second.messages == [{"role": "tool", "content": "sand", "tool_call_id": "call_1"}]


def test_a_conversation_that_is_begun_anew_is_told_whole_and_one_that_is_repeated_not_at_all():
    log = ConversationLog()
    log.record(1, Conversation([SYSTEM, ASK]), CALLED)
    again = log.record(2, Conversation([SYSTEM, ASK]), Message(role="assistant", content="Elsewhere."))
    assert (again.continues, again.kept, again.messages) == (1, 2, [])
    other = log.record(3, Conversation([Message(role="user", content="Sum it up.")]), CALLED)
    assert (other.continues, other.kept, len(other.messages)) == (None, 0, 1)


def test_a_hundred_turns_are_kept_once():
    log = ConversationLog()
    messages, kept = [SYSTEM], 0
    for turn in range(100):
        messages.append(Message(role="user", content=f"turn {turn}"))
        reply = Message(role="assistant", content=f"reply {turn}")
        kept += len(log.record(turn, Conversation(list(messages)), reply).messages)
        messages.append(reply)
    assert kept == 101


def test_an_images_payload_is_not_kept():
    picture = "data:image/png;base64," + "iVBORw0KGgo" + "A" * 64
    log = ConversationLog()
    said = log.record(1, Conversation([Message(role="user", content=picture)]), CALLED)
    assert said.messages[0]["content"]["image"] == "image/png"
    assert "AAAA" not in str(said)
