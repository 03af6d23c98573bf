"""OpenAI's fine-tuning request, and the job of our schema that it describes."""
