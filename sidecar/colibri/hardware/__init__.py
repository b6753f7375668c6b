"""What this machine has and what of it is free."""
