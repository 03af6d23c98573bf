"""The code that runs in vLLM's own processes."""
