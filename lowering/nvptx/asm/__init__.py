"""Inline PTX as rows of data, by family.

Invariant: a PTX spelling stands in exactly one row; every row is assembled by a test on the
targets that have it.
"""
