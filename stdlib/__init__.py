"""Kernels written with nothing but `import astdsl`, each beside its reference in NumPy."""
