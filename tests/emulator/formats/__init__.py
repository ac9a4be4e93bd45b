"""Tests of bit formats and index maps."""
