"""Formats that the hardware dictates: tensor maps, swizzles, descriptors, fragments.

Invariant: everything here is a pure function of its arguments; no emulator state, no memory.
"""
