"""Telemetry of the server: what is seen, how it travels."""
