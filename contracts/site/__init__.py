"""The documentation site: the pages of the repository, arranged for mkdocs."""
