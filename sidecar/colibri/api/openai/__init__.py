"""The OpenAI dialect: models, chat completions and legacy completions."""
