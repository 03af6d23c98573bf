"""Traces as files: exports, and the images in them."""
