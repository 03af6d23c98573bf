"""vLLM as an engine: its AsyncLLM in this process, its EngineCore in a child process. Only `plugin`, which runs in the
engine process, needs vllm to be imported.

A host is one EngineCore over a base model. It serves either many policies, each the base or an adapter over it, or
one policy whose full weights are swapped. Some faults of vLLM 0.32 silently give wrong tokens. Each has a workaround,
named in `EngineSettings.workarounds`, and a test that proves that the fault does not occur, with or without it:

`tied_head` (`plugin.worker`): after a reload, a tied LM head keeps the old weights. Tested at start (`selftest`).
`packed_experts` (`plugin.cpu_experts`): after a reload on a CPU, experts are not packed as their kernel wants them.
Tested at start (`selftest`).
`lora_mask` (`plugin.worker`): beside rows with an adapter, rows without one get one too. Tested at start (`selftest`).
`clear_cache` (`host`): the prefix cache outlives a swap of full weights. Tested after every swap (`selftest`).
"""
