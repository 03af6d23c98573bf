"""The import of an OpenAI account: fine-tuning jobs as job files, and the files that they name."""
