"""Images for a model: checking an image's file, computing its patches, and their places in a prompt."""
