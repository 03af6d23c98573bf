"""What runs in vLLM's own processes."""
