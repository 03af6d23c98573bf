"""Text of others, made safe for a terminal."""
