"""HTTP: guards, dialects, encoders and the server they run on. Nothing below imports it."""
