"""Model files: reading containers, converting into our own, finding installed models.

For: the server, the worker and the commands. `model.open_model` is the usual entry. Not for: chat
text (`colibri.text`) or computing (`colibri.engine`). Everything read here is untrusted.
"""
