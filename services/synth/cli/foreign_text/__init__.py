"""What others wrote, made safe for a terminal."""
