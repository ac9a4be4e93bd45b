"""`astdsl explain`: what was inferred of a kernel.

Invariant: it prints what `Lowered.explain()` says.
"""

from __future__ import annotations

import argparse

from astdsl.cli.arguments import add_options, read_arguments
from astdsl.cli.files import find_kernel
from astdsl.cli.render import Screen

HELP = "say what was inferred: classes of arguments, blocks, stages, buffers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser)


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Print the explanation."""
    kernel = find_kernel(options.place)
    signature = kernel.signature
    arguments, constants = read_arguments(signature, options.arg, options.const)
    text = kernel.lower(**arguments, **constants, target=options.target).explain()
    if screen.as_json:
        screen.show_json({"explanation": text.splitlines()})
    else:
        screen.show(text)
    return 0
