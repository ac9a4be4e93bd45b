"""Tests of astdsl: the folders mirror the package."""
