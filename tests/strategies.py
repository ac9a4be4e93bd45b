"""Hypothesis strategies: every generator that the tests share, one section for each family."""
