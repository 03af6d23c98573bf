"""A rollout in a form for people: its conversation, its task app's answer, and its entry in the batch.

Nothing here is trained on, and nothing here needs tensors: the gateway reads all of it.
"""
