"""Random kernels as source text, which every witness must understand alike: `python -m tests.fuzz`.

A program follows from its seed. `kernels` combines what the language has in pipelines, loops and
branches, `products` what matrix products may meet, `scaled` those of blocks with scales and of
batches, `rings` writes rings of slots by hand, right ones and wrong ones, `warpgroups` bodies of
several warpgroups that meet at barriers. `structures` are containers, `match` and pipelines as
functions, `views` parts that end at run time and what indices pick, `elementary` functions with
their errors. `plain` is one more witness: the same text, run by Python and NumPy.
"""
