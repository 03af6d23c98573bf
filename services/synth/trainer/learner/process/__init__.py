"""The parts of a training process beside training: messages from and to its owner, and turns at a shared device."""
