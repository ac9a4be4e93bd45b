"""`--arg a=4096x4096:f16` and `--const bm=64`: from text to what a kernel is lowered for.

Invariant: what a command line does not say is taken from the signature where that settles it, and
asked for by an error that shows the option otherwise.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from astdsl.errors import BadCommand, did_you_mean
from astdsl.frontend.signature import MISSING, Parameter, Signature
from astdsl.ir.core import OUT
from astdsl.ir.dtypes import BY_NAME, DType, f32
from astdsl.kernel import Spec
from astdsl.lang.annotations import ArraySpec, Dim

EXAMPLE_EXTENT = 256


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which kernel is meant, and for which arguments."""
    parser.add_argument("place", metavar="FILE[:KERNEL]", help="a Python file and a kernel of it")
    parser.add_argument("--target", default="", help="sm_90a or sm_100a")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE",
        help="an array as `a=4096x4096:f16`, or a scalar as `alpha=0.5`; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--const", action="append", default=[], metavar="NAME=VALUE",
        help="a compile-time constant, as `bm=64`; may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="write what a program can read")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that make random data."""
    parser.add_argument(
        "--seed", type=at_least(0), default=0, help="of the random data (%(default)s)"
    )


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads an option's integer, of which smaller ones mean nothing."""

    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no integer of {least} or more")
        return int(text)

    return read


def read_arguments(
    signature: Signature, given: Iterable[str], constants: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a call's arguments and constants by name, arrays as `Spec`s. Raises BadCommand."""
    by_name = {p.name: p for p in signature.params}
    found = _pairs(given, "--arg", by_name)
    known = _pairs(constants, "--const", [c.name for c in signature.constants])
    chosen = {name: _constant(name, text) for name, text in known.items()}
    arguments = {name: _value(by_name[name], text) for name, text in found.items()}
    defaults = {c.name: c.default for c in signature.constants}
    extents = {n: v for n, v in {**defaults, **chosen}.items() if type(v) is int}
    for name, value in arguments.items():
        if isinstance(value, Spec):
            extents |= _extents(by_name[name], value)
    for p in signature.params:
        if p.name not in arguments and not _may_be_left_out(p):
            arguments[p.name] = _inferred(p, extents)
    return arguments, chosen


def _pairs(options: Iterable[str], option: str, known: Iterable[str]) -> dict[str, str]:
    """Split `NAME=VALUE`s, and refuse names that the kernel does not have."""
    names, found = list(known), dict[str, str]()
    what = "argument" if option == "--arg" else "constant"
    for text in options:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise BadCommand(f"`{option} {text}` has no value", help=f"write `{option} {name}=...`")
        if name not in names:
            listed = f"it has {', '.join(names)}" if names else "it has none"
            raise BadCommand(
                f"the kernel has no {what} `{name}`", help=did_you_mean(name, names) or listed
            )
        if name in found:
            raise BadCommand(f"`{option} {name}` is given twice", help="leave one of the two out")
        found[name] = value
    return found


def _constant(name: str, text: str) -> Any:
    """Read a constant: a dtype, a Python literal, or else the text itself."""
    if text in BY_NAME:
        return BY_NAME[text]
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _value(p: Parameter, text: str) -> Any:
    if p.spec is not None:
        return _array(p, p.spec, text)
    try:
        number = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        number = None
    if not isinstance(number, int | float):
        raise BadCommand(
            f"`{text}` is no number, and `{p.name}` is a scalar",
            p.place,
            help=f"write {_option(p)}",
        )
    return number


def _array(p: Parameter, spec: ArraySpec, text: str) -> Spec:
    """Read `4096x4096:f16`; the dtype may be left out where the annotation has one."""
    dims, colon, name = text.partition(":")
    extents = [int(dim) if dim.isdecimal() else -1 for dim in dims.split("x")] if dims else []
    dtype = BY_NAME.get(name) if colon else _only_dtype(spec)
    if any(extent < 0 for extent in extents):
        message = f"`{dims}` is no shape for `{p.name}`"
        raise BadCommand(message, p.place, help=f"write {_option(p)}")
    if dtype is None:
        message = f"there is no dtype `{name}`" if colon else f"`{p.name}` needs a dtype"
        hint = did_you_mean(name, BY_NAME) or f"write {_option(p)}"
        raise BadCommand(message, p.place, help=hint)
    return Spec(tuple(extents), dtype)


def _only_dtype(spec: ArraySpec) -> DType | None:
    return spec.dtypes[0] if len(spec.dtypes) == 1 else None


def _extents(p: Parameter, value: Spec) -> dict[str, int]:
    """Return what an array's shape says about its dims' names."""
    dims = p.spec.dims if p.spec is not None and not p.spec.any_rank else None
    return {d.name: e for d, e in zip(dims or (), value.shape, strict=False) if d.name}


def _may_be_left_out(p: Parameter) -> bool:
    if p.spec is None:
        return p.default is not MISSING
    return p.spec.role == OUT or p.default is None


def _inferred(p: Parameter, extents: Mapping[str, int]) -> Spec:
    """Return an array whose shape and dtype follow from the annotation and the other arguments."""
    spec = p.spec
    dtype = _only_dtype(spec) if spec is not None else None
    if spec is None or dtype is None or spec.dims is None or spec.any_rank:
        raise _missing(p)
    shape = [extents.get(d.name) if d.extent is None else d.extent for d in spec.dims]
    if None in shape:
        raise _missing(p)
    return Spec(tuple(e for e in shape if e is not None), dtype)


def _missing(p: Parameter) -> BadCommand:
    what = "value" if p.spec is None else "shape"
    return BadCommand(f"the {what} of `{p.name}` is not given", p.place, help=f"add {_option(p)}")


def _option(p: Parameter) -> str:
    """Return the option for a parameter, with an example's value."""
    if p.spec is None:
        return f"`--arg {p.name}=1`"
    dims = p.spec.dims if p.spec.dims is not None else (Dim("M"), Dim("N"))
    shape = "x".join(str(d.extent or EXAMPLE_EXTENT) for d in dims)
    dtype = p.spec.dtypes[0] if p.spec.dtypes else f32
    return f"`--arg {p.name}={shape}:{dtype}`"
