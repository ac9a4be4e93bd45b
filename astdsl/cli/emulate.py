"""`astdsl emulate`: any compiler's PTX on the CPU, with every hazard looked for.

Invariant: the file is PTX text and nothing of it is compiled; what the kernel changed is what is
shown, and written where that is asked for.
"""

from __future__ import annotations

import argparse
import ast
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from astdsl.cli.arguments import add_seed, at_least
from astdsl.cli.render import Screen
from astdsl.cli.run import random_array
from astdsl.emulator import DeviceFault, TensorMap, entries
from astdsl.emulator import run as run_ptx
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.errors import BadCommand, did_you_mean, in_words
from astdsl.ir.dtypes import BY_NAME

Array: TypeAlias = "np.ndarray[Any, Any]"
HELP = "run PTX of any compiler on the CPU, looking for races, deadlocks and wrong addresses"
# Faults of the call: text, support, launch and arguments; all others are the kernel's.
OF_THE_CALL = frozenset({"E200", "E201", "E202", "E203"})
# What programs read of a fault.
TOLD = ("code", "message", "kernel_line", "ptx_line", "block", "warp", "help")
SWIZZLES = {"none": Swizzle.NONE, "32": Swizzle.B32, "64": Swizzle.B64, "128": Swizzle.B128}
_SHAPED = re.compile(r"(?:(zeros|ones|range):)?(\d+(?:x\d+)*):(\w+)")
_MAP = re.compile(r"map\((\d+)@(\d+(?:x\d+)*)(?:@(\w+))?\)")
ARGUMENT_HELP = (
    "in order: an array of random values `4096x4096:f16` (or `zeros:`, `ones:`, `range:` before it)"
    ", a file `x.npy`, a number `3` or `0.5`, or `map(0@128x64@128)`: the tensor map of argument 0"
    " with boxes of 128x64 and a 128-byte swizzle; may be repeated"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("place", metavar="FILE.ptx[:KERNEL]", help="PTX, and a kernel of it")
    for name, default in (("grid", "1"), ("block", "1"), ("cluster", "")):
        parser.add_argument(f"--{name}", default=default, metavar="X[,Y[,Z]]", help=f"the {name}")
    parser.add_argument(
        "--shared", type=at_least(0), default=0, metavar="BYTES", help="dynamic shared memory"
    )
    parser.add_argument("--arg", action="append", default=[], metavar="VALUE", help=ARGUMENT_HELP)
    parser.add_argument("--completion", default="late", help="late, early, or a seed")
    parser.add_argument("--order", default="min-pc", help="min-pc, max-pc, round-robin, or a seed")
    parser.add_argument(
        "--fp8-accumulate", default="exact", choices=("exact", "hardware"),
        help="how `wgmma` sums FP8 products: %(default)s, or in the 14 bits that Hopper keeps",
    )  # fmt: skip
    parser.add_argument("--no-check", action="store_true", help="do not look for hazards")
    add_seed(parser)
    parser.add_argument("--save", default="", metavar="FILE.npz", help="write the arrays after it")
    parser.add_argument("--json", action="store_true", help="write what a program can read")


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Run the kernel; 1 where it faults."""
    ptx, kernel = _text(options.place)
    arguments = read_arguments(options.arg, options.seed)
    arrays = {str(i): a for i, a in enumerate(arguments) if isinstance(a, np.ndarray)}
    before = {name: array.copy() for name, array in arrays.items()}
    start = time.perf_counter()
    try:
        run_ptx(
            ptx, kernel, _extents(options, "grid"), _extents(options, "block"), arguments,
            cluster=_extents(options, "cluster") if options.cluster else None,
            shared_bytes=options.shared, completion=_choice(options, "completion"),
            order=_choice(options, "order"), check=not options.no_check,
            fp8_accumulate=options.fp8_accumulate,
        )  # fmt: skip
    except DeviceFault as fault:
        _complain(screen, fault)
        return 2 if fault.code in OF_THE_CALL else 1
    seconds = time.perf_counter() - start
    if options.save:
        _save(options.save, arrays)
    changed = {name: _changes(before[name], array) for name, array in arrays.items()}
    if screen.as_json:
        screen.show_json({"kernel": kernel, "seconds": seconds, "changed": changed})
    else:
        rows = [(f"argument {name}", text) for name, text in changed.items()]
        screen.show_table([("kernel", kernel), ("time", f"{seconds:.3f} s"), *rows])
    return 0


def _save(path: str, arrays: dict[str, Array]) -> None:
    named: dict[str, Any] = dict(arrays)
    try:
        np.savez(path, **named)
    except OSError as error:
        what = f"`{path}` cannot be written: {error.strerror}"
        raise BadCommand(what, help="name a file in a folder that is there") from None


def _complain(screen: Screen, fault: DeviceFault) -> None:
    if screen.as_json:
        found = {name: getattr(fault, name) for name in TOLD}
        screen.show_json({"error": found})
    else:
        screen.note(str(fault))


def _text(place: str) -> tuple[str, str]:
    """Return the text of a file and the kernel that is meant. Raises BadCommand."""
    path, colon, kernel = place.rpartition(":")
    if not colon or not path or path.endswith(("/", "\\")) or Path(place).is_file():
        path, kernel = place, ""
    try:
        ptx = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        what = f"`{path}` cannot be read: {error.strerror}"
        raise BadCommand(what, help="pass a PTX file") from None
    except UnicodeDecodeError as error:
        raise BadCommand(f"`{path}` is no text: {error}", help="pass a PTX file") from None
    try:
        names = entries(ptx)
    except DeviceFault as fault:
        raise BadCommand(f"`{path}` is no PTX: {fault.message}", help=fault.help) from None
    if kernel in names:
        return ptx, kernel
    if not kernel and len(names) == 1:
        return ptx, names[0]
    if not names:
        raise BadCommand(
            f"`{path}` has no kernel", help="the text of a kernel begins with `.entry`"
        )
    what = f"no kernel `{kernel}`" if kernel else in_words(len(names), "kernel")
    hint = did_you_mean(kernel, names) or f"its kernels are {', '.join(names)}"
    raise BadCommand(f"`{path}` has {what}", help=hint)


def _extents(options: argparse.Namespace, name: str) -> Sequence[int]:
    parts = getattr(options, name).replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        raise BadCommand(
            f"`--{name} {getattr(options, name)}` is no extent", help=f"write `--{name} 8,4,1`"
        )
    return [int(part) for part in parts]


def _choice(options: argparse.Namespace, name: str) -> Any:
    """Return a word that the emulator knows, or a seed."""
    text = getattr(options, name)
    words = {"completion": ("late", "early"), "order": ("min-pc", "max-pc", "round-robin")}[name]
    if text in words:
        return text
    if text.isdecimal():
        return int(text)
    raise BadCommand(f"`--{name} {text}`", help=f"choose {', '.join(words)}, or a number as seed")


def read_arguments(texts: Sequence[str], seed: int) -> list[Any]:
    """Return the arguments that command line texts describe. Raises BadCommand."""
    random = np.random.default_rng(seed)
    found: list[Any] = []
    for text in texts:
        tensor = _MAP.fullmatch(text)
        found.append(_map(text, tensor, found) if tensor else _argument(text, random))
    return found


def _argument(text: str, random: np.random.Generator) -> Any:
    shaped = _SHAPED.fullmatch(text)
    if shaped:
        return _array(text, shaped, random)
    if text.endswith(".npy"):
        try:
            return np.load(text)
        except OSError as error:
            what = f"`{text}` cannot be read: {error.strerror}"
            raise BadCommand(what, help="pass an .npy file") from None
        except ValueError as error:
            raise BadCommand(f"`{text}` is no array: {error}", help="pass an .npy file") from None
    try:
        number = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        number = None
    if not isinstance(number, int | float):
        raise BadCommand(f"`--arg {text}` is no argument", help=ARGUMENT_HELP)
    return number


def _array(text: str, shaped: re.Match[str], random: np.random.Generator) -> Array:
    dtype = BY_NAME.get(shaped[3])
    if dtype is None:
        hint = did_you_mean(shaped[3], BY_NAME) or f"dtypes are {', '.join(BY_NAME)}"
        raise BadCommand(f"`--arg {text}`: there is no dtype `{shaped[3]}`", help=hint)
    shape = tuple(int(extent) for extent in shaped[2].split("x"))
    if shaped[1] == "range":
        return np.arange(np.prod(shape)).reshape(shape).astype(dtype.numpy)
    if shaped[1]:
        return np.full(shape, int(shaped[1] == "ones")).astype(dtype.numpy)
    return random_array(shape, dtype, random)


def _map(text: str, tensor: re.Match[str], before: Sequence[Any]) -> TensorMap:
    number, mode = int(tensor[1]), SWIZZLES.get(tensor[3] or "none")
    if number >= len(before) or not isinstance(before[number], np.ndarray):
        what = f"`--arg {text}`: argument {number} is no array before it"
        raise BadCommand(what, help=ARGUMENT_HELP)
    if mode is None:
        raise BadCommand(f"`--arg {text}`", help=f"swizzles are {', '.join(SWIZZLES)}")
    try:
        box = [int(extent) for extent in tensor[2].split("x")]
        return TensorMap.of(before[number], box, swizzle=mode)
    except FormatError as error:
        raise BadCommand(f"`--arg {text}`: {error}", help="PTX ISA section 5.5") from None


def _changes(before: Array, after: Array) -> str:
    changed = before.reshape(-1).view(np.uint8) != after.reshape(-1).view(np.uint8)
    if not changed.any():
        return "unchanged"
    elements = changed.reshape(-1, before.itemsize).any(axis=1)
    first = after.reshape(-1)[int(np.argmax(elements))]
    return f"{int(elements.sum())} of {after.size} elements changed, the first to {first}"
