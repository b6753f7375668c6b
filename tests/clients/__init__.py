"""Real clients against the real server, and requests of the shape that they send."""
