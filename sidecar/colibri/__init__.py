"""Colibri's sidecar: command line, HTTP server, scheduler, text and model handling over the C engine.

Importing this package is cheap: nothing here may import a dependency.
"""

__version__ = "0.1.0"
