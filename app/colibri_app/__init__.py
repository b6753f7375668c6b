"""The desktop shell around the server. Only `entry` may import the sidecar's code."""
