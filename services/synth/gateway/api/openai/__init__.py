"""The OpenAI API: the same jobs, files and models, in the shapes that the openai SDK reads."""
