"""GPU kernels as plain Python functions.

Importing this package loads neither llvmlite nor a CUDA library: both wait for the first kernel
that needs them.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
