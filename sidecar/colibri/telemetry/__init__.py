"""What the server is doing, for eyes: state in sections, speeds, turns, maps of experts, logs.

For: the dashboard's WebSocket and the snapshots beside it. Not for: anything that decides; nothing
here changes what is served.
"""

from colibri.telemetry.hub import Hub
from colibri.telemetry.logring import LogRing
from colibri.telemetry.turns import Turn, TurnLog

__all__ = ["Hub", "LogRing", "Turn", "TurnLog"]
