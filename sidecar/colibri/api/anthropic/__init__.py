"""The Anthropic dialect: messages, and counting their tokens."""
