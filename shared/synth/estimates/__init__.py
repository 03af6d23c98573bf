"""What is estimated from rewards, and how well it is known."""
