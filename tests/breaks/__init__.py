"""One-line breaks of guarantees, each with the tests that must notice it."""
