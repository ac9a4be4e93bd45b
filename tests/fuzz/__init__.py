"""Random kernels as source text, which every witness must understand alike: `python -m tests.fuzz`.

A program follows from its seed. `kernels` combines what the language has in pipelines, loops and
branches, `products` what matrix products may meet, `rings` writes rings of slots by hand, right
ones and wrong ones. `plain` is one more witness: the same text, run by Python and NumPy.
"""
