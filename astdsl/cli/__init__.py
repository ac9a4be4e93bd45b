"""The command line: one module for each command, `main` to choose it, `render` to show results.

Invariant: a command returns its exit code, 0 good, 1 the kernel is wrong, 2 the call is wrong, and
writes through a `Screen` only.
"""
