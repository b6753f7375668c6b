"""The engine as Python sees it: the table handed over, the binding, and the process around it."""
