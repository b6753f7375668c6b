"""Tests of tokens, templates, detokenising and stop sequences."""
