"""Tests of reading, refusing and converting model files."""
