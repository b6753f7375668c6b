"""The sidecar: command line, HTTP server, scheduler, text and models over the C engine.

Importing this package is cheap: nothing here may import a dependency.
"""

__version__ = "0.1.0"
