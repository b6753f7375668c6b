"""Data, training and export of the starter model (`make starter`). Not part of the package."""
