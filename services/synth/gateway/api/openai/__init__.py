"""The OpenAI API: jobs, files and models in the shapes that the openai SDK reads."""
