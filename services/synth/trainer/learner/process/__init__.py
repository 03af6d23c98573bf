"""What a training process does beside training: messages from and to its owner, and turns at a shared device."""
