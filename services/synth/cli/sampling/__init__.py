"""Replies of models to the rows of a dataset: sampled once, kept in a folder, within a budget."""
