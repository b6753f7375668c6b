"""Tries a release as a person meets it: unpacked in an empty folder, or on a system that has
nothing.

Standard library only, so that it runs wherever a Python is, with no environment of the project.
"""
