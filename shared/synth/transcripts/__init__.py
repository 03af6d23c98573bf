"""What a rollout looked like to a person: its conversation, what its task app answered, what its batch says of it.

Nothing here is trained on, and nothing here needs tensors: the gateway reads all of it.
"""
