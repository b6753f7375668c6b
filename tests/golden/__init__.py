"""Built-in chat templates against an independent implementation of the same formats."""
