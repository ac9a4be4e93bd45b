"""Tests of the back end."""
