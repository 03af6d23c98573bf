"""Small base models that are made on this machine: real architectures, random weights."""
