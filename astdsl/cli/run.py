"""`astdsl run`: a kernel on random data, compared with the reference.

Invariant: integers, bools and copies must agree bit for bit, floats within a reordered sum.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from astdsl.cli.arguments import add_options, add_seed, read_arguments
from astdsl.cli.files import find_kernel
from astdsl.cli.keep import add_option, keep
from astdsl.cli.render import Screen
from astdsl.errors import BadCommand
from astdsl.frontend.signature import Signature
from astdsl.ir.core import IN
from astdsl.ir.dtypes import DType, f8e8m0
from astdsl.kernel import Kernel, Placed, Spec
from astdsl.runtime.devices import selected_device

Array: TypeAlias = "np.ndarray[Any, Any]"
HELP = "run a kernel on random data, and compare it with the reference"
# Differences that a reordered sum can make, relative to the largest element of the result,
# by the bytes of an element.
TOLERANCE = {8: 1e-10, 4: 1e-4, 2: 2e-2, 1: 0.25}
LARGEST_INTEGER = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser)
    add_option(parser)
    parser.add_argument("--device", default="", help="emulator or cuda; default as in a program")
    add_seed(parser)


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Run the kernel on the device and on the reference; 1 where they disagree."""
    kernel = find_kernel(options.place)
    signature = kernel.signature
    arguments, constants = read_arguments(signature, options.arg, options.const)
    device = options.device or selected_device()
    require_no_outputs(signature, arguments)
    if device == "reference":
        raise BadCommand(
            "`run` compares a device with the reference, which would be compared with itself",
            help="choose `--device emulator`, or cuda",
        )
    if options.keep:
        keep(options.keep, kernel.lower(**arguments, **constants, target=options.target))
    random = np.random.default_rng(options.seed)
    given = {n: random_value(v, random) for n, v in arguments.items()}
    start = time.perf_counter()
    got = outputs_of(kernel, signature, given, constants, (device, options.target))
    seconds = time.perf_counter() - start
    wanted = outputs_of(kernel, signature, given, constants, ("reference", options.target))
    results = [Comparison.of(name, got[name], wanted[name]) for name in got]
    is_good = all(result.is_good for result in results)
    if screen.as_json:
        outputs = {result.name: result.text for result in results}
        screen.show_json(
            {"device": device, "seconds": seconds, "good": is_good, "outputs": outputs}
        )
    else:
        about = [("device", device), ("time", f"{seconds:.3f} s, with compilation")]
        screen.show_table([*about, *((result.name, result.text) for result in results)])
    return 0 if is_good else 1


def require_no_outputs(signature: Signature, arguments: dict[str, Any]) -> None:
    """Refuse arguments for what a run allocates. Raises BadCommand."""
    for name in arguments:
        if signature.roles[name] == "out":
            raise BadCommand(
                f"`{name}` is an output, which `run` allocates", help=f"leave `--arg {name}` out"
            )


def random_value(value: Any, random: np.random.Generator) -> Any:
    """Return random data for a `Spec`, a scalar as it is."""
    return random_array(value.shape, value.dtype, random) if isinstance(value, Spec) else value


def random_array(shape: tuple[int, ...], dtype: DType, random: np.random.Generator) -> Array:
    """Return normal floats, small integers or coin flips."""
    if dtype is f8e8m0:  # powers of two alone
        return np.exp2(random.integers(-2, 2, shape, endpoint=True)).astype(dtype.numpy)
    if dtype.is_float:
        return random.standard_normal(shape).astype(dtype.numpy)
    if dtype.is_integer:
        low = -LARGEST_INTEGER if dtype.is_signed else 0
        return random.integers(low, LARGEST_INTEGER, shape, endpoint=True).astype(dtype.numpy)
    return random.integers(0, 2, shape).astype(dtype.numpy)


def outputs_of(
    kernel: Kernel | Placed,
    signature: Signature,
    given: dict[str, Any],
    constants: dict[str, Any],
    place: tuple[str, str],
) -> dict[str, Array]:
    """Run on copies, and return by name what the kernel wrote."""
    device, target = place
    copies = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in given.items()}
    made = kernel.on(device, target=target)(**copies, **constants)
    several = made if isinstance(made, tuple) else (made,)
    outputs = [p.name for p in signature.params if p.spec and p.spec.role == "out"]
    found = dict(zip(outputs, several, strict=True)) if outputs else {}
    changed = [n for n in copies if signature.roles[n] not in {IN, "scalar"}]
    return found | {name: copies[name] for name in changed}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an output compares with the reference's."""

    name: str
    is_good: bool
    text: str

    @classmethod
    def of(cls, name: str, got: Array, wanted: Array) -> Comparison:
        """Compare two arrays of one shape and dtype; NaNs are equal."""
        a, b = got.astype(np.float64), wanted.astype(np.float64)
        same = (got == wanted) | (np.isnan(a) & np.isnan(b))
        if same.all():
            exact = got.tobytes() == wanted.tobytes()
            return cls(name, True, "equal, bit for bit" if exact else "equal")
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        largest = float(np.max(np.abs(a - b), where=~same, initial=0.0))
        scale = float(np.max(np.abs(b), where=np.isfinite(b), initial=0.0))
        is_close = _is_float(got) and largest <= TOLERANCE[got.dtype.itemsize] * scale
        text = (
            f"{'close' if is_close else 'wrong'}: {np.count_nonzero(~same)} of {same.size} "
            f"elements differ, by at most {largest:.3g}; the first at {first} is {got[first]}, "
            f"the reference has {wanted[first]}"
        )
        return cls(name, is_close, text)


def _is_float(array: Array) -> bool:
    return array.dtype != bool and not np.issubdtype(array.dtype, np.integer)
