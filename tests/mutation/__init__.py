"""Mutation of programs: kernels of the repository with one token changed, each one judged.

`python -m tests.mutation --count 2000` is the full run, and prints the score; CI runs a few dozen.
"""
