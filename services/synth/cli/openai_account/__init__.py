"""What a user takes from an OpenAI account: fine-tuning jobs as job files, and the files that they name."""
