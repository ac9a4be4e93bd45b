"""Tests of the NVPTX text builder, its rows, libdevice and the assemblers."""
