"""Text: tokens, chat templates, incremental detokenising and stop sequences.

For: the HTTP side (prompt to tokens) and the worker (tokens to text). Not for: model weights.
"""
