"""The Synth API: the routes that the published synth-ai clients call, over the same jobs, files and models."""
