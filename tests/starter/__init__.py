"""The starter model: data and rows, and the shipped weights."""
