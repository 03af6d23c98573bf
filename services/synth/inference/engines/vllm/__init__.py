"""vLLM as an engine: its AsyncLLM in this process, its EngineCore in a child. No module needs vllm to be imported,
but for those that run in the engine process (`worker`, `banned_tokens`, `preload`).

A host is one EngineCore over a base model. It serves either many policies, each the base or an adapter over it, or
one policy whose full weights are swapped. What is known to be silently wrong in vLLM 0.32 is worked around, each by a
name in `EngineSettings.workarounds`, and proven not to occur, whoever put it right:

`tied_head` (`worker`): after a reload a tied LM head goes on with the old weights. Proven at start (`selftest`).
`lora_mask` (`worker`): beside rows with an adapter, rows without one get an adapter too. Proven at start (`selftest`).
`clear_cache` (`host`): the prefix cache outlives a swap of full weights. Proven after every swap (`selftest`).
"""
