"""Makes the program's releases: what goes into a frozen program, archives, lists, and their tests.

Run by `make release`. Nothing here is part of the program.
"""
