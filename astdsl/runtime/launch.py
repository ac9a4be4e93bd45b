"""The hot path of a call: arguments to a key, and a prepared launch to run for that key.

Invariant: everything that a key settles (shapes, strides, dtypes, alignment, constants) is worked
out once, when the launch is prepared; a call with a known key reads addresses and scalars, compares
byte ranges of outputs, and launches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from astdsl.errors import FailedAssertion
from astdsl.ir.dtypes import DType
from astdsl.ir.launch import Check, LaunchPlan
from astdsl.ir.printing import UNMET, printed
from astdsl.records import dataclass
from astdsl.runtime.arrays import (
    ArrayView,
    Where,
    as_numpy,
    byte_offsets,
    check_aliases,
)
from astdsl.runtime.classes import Geometry
from astdsl.runtime.host import HostFunction, compile_host, reads_scalars
from astdsl.runtime.libraries import (
    FINISHED_LIBRARIES,
    allocate,
    fill,
    in_library,
    is_array,
    view_of,
)

# A PyArrayObject is a Python object's head and then the pointer to its data (NumPy's C API,
# "Array Structures"). Memory as words, word k at address 8 k, is what reads it fastest: a tenth of
# the time of `__array_interface__`.
DATA_WORD = object.__basicsize__ // 8
WORDS = memoryview((ctypes.c_char * (1 << 47)).from_address(0)).cast("B").cast("Q")


def _pointer_is_where_expected() -> bool:
    if object.__basicsize__ % 8 or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    probe = np.zeros(3)[1:]
    found: int = WORDS[(id(probe) >> 3) + DATA_WORD]
    return bool(found == probe.__array_interface__["data"][0])


# The type whose objects are read so: NumPy's arrays, nothing where the pointer is elsewhere.
DIRECT = np.ndarray if _pointer_is_where_expected() else None
NUMBERS = frozenset({bool, int, float, type(None)})


def describe(
    objects: list[Any], key: list[Any], where: Sequence[Where]
) -> tuple[list[Any], list[Any]]:
    """Extend `key` by what a launch depends on; return (addresses and numbers, arrays).

    Arrays of other libraries stand in the second as their views.
    """
    values: list[Any] = []
    arrays, direct, words, data_word = objects, DIRECT, WORDS, DATA_WORD
    for position, given in enumerate(objects):
        kind = type(given)
        if kind is direct:
            address = words[(id(given) >> 3) + data_word]
            key += (given.shape, given.strides, given.dtype, given.flags.writeable, address & 15)
            values.append(address)
        elif kind not in NUMBERS and is_array(given):
            arrays = list(objects) if arrays is objects else arrays
            view = arrays[position] = view_of(given, where[position])
            key += (view.shape, view.strides, view.dtype, view.writeable, view.address & 15)
            key += (view.library, view.device)
            values.append(view.address)
        else:
            key.append(kind)
            values.append(given)
    return values, arrays


@dataclass(frozen=True, slots=True)
class Argument:
    """What a module's parameter is bound to: an array of a geometry, or a scalar.

    `source` is the position among the call's objects, allocated outputs last. An array whose
    elements are not aligned is `staged`: the kernel gets an aligned copy, of `geometry`, and what
    it writes is copied back. `library` and `device` are the array's (`arrays.ArrayView`).
    """

    where: Where
    source: int
    role: str
    dtype: DType
    geometry: Geometry | None = None
    initial: float | int | bool | None = None
    convert: Callable[[Any], Any] | None = None
    staged: Geometry | None = None
    library: str = "numpy"
    device: int | None = None

    @property
    def is_written(self) -> bool:
        """Whether the kernel writes this argument."""
        return self.role in ("out", "inout")

    @property
    def offsets(self) -> tuple[int, int]:
        """The bytes that the argument takes, from its address on; none for a scalar."""
        g = self.staged or self.geometry
        return (0, 0) if g is None else byte_offsets(g.shape, g.strides, g.dtype.bytes)


@dataclass(frozen=True, slots=True)
class Allocation:
    """An omitted output: what a call allocates, beside the object at `like`, if any."""

    where: Where
    shape: tuple[int, ...]
    dtype: DType
    like: int | None


class Launcher(Protocol):
    """A kernel loaded on a device for arguments of one geometry."""

    def __call__(self, counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Run the launches one after the other, each when all blocks of the last are done.

        `values` are the addresses and numbers of the module's parameters, `arrays` the arrays or
        views (numbers for scalars).
        """


class Counts(NamedTuple):
    """What the host computes for a call: the blocks of each launch, the shapes of scratch."""

    grids: tuple[int, ...]
    scratch: tuple[tuple[int, ...], ...]


CountsFunction: TypeAlias = Callable[[Sequence[Any]], Counts]


class Launch:
    """A call with a known key: launch it, and return its outputs."""

    __slots__ = (
        "_aliases", "_allocations", "_arguments", "_checks", "_conversions", "_count",
        "_counts", "_defaults", "_extends", "_filled", "_finished", "_launcher", "_order",
        "_outputs", "_shapes", "_staged",
    )  # fmt: skip

    def __init__(
        self,
        arguments: Sequence[Argument],
        allocations: Sequence[Allocation],
        outputs: Sequence[int],
        launcher: Launcher,
        *,
        passed: int,
        defaults: Sequence[Any] = (),
        plan: LaunchPlan | None = None,
    ) -> None:
        """Prepare; FailedAssertion for a check that the shapes alone refuse.

        `passed` counts the objects that the call passes, `defaults` come after them, and then what
        is allocated; `outputs` are the positions of what a call returns. Without a plan, the
        device counts blocks and checks assertions itself.
        """
        self._arguments = tuple(arguments)
        self._allocations = tuple(allocations)
        self._defaults = list(defaults)
        self._extends = bool(allocations or defaults)
        self._outputs = tuple(outputs)
        self._finished = list(_to_finish(arguments, allocations, passed + len(self._defaults)))
        self._launcher = launcher
        order = [a.source for a in arguments]
        self._order = () if order == list(range(len(order))) else tuple(order)
        self._shapes = tuple(a.geometry.shape if a.geometry else () for a in arguments)
        self._conversions = [(i, a.convert) for i, a in enumerate(arguments) if a.convert]
        self._filled = [(i, a.initial) for i, a in enumerate(arguments) if a.initial is not None]
        self._staged = [(i, a) for i, a in enumerate(arguments) if a.staged]
        self._aliases = tuple(_pairs_to_compare(arguments, passed))
        self._checks = tuple(self._open_checks(plan.checks if plan else ()))
        self._count: CountsFunction | None = None
        self._counts = Counts((1,), ())
        if plan is not None:
            count = self._counter(plan)
            if _counts_by_scalars(plan):
                self._count = count
            else:
                self._counts = count(())

    def __call__(self, objects: list[Any], arrays: list[Any], values: list[Any]) -> Any:
        """Launch with a call's objects and what `describe` says of them."""
        if self._extends:
            arrays = list(arrays) if arrays is objects else arrays
            self._extend(objects, arrays, values)
        ordered = arrays
        if self._order:
            ordered = [arrays[source] for source in self._order]
            values = [values[source] for source in self._order]
        for position, convert in self._conversions:
            values[position] = convert(values[position])
        for i, j, low, high in self._aliases:
            if low < values[j] - values[i] < high:
                self._refuse_pair(i, j, ordered)
        return self._run(objects, ordered, values)

    def again(self, objects: list[Any], values: list[Any]) -> Any:
        """Launch for objects and values that the launch's `recent` check has accepted."""
        arrays = objects
        if self._extends:
            arrays = list(objects)
            self._extend(objects, arrays, values)
        if self._order:
            arrays = [arrays[source] for source in self._order]
            values = [values[source] for source in self._order]
        for position, convert in self._conversions:
            values[position] = convert(values[position])
        return self._run(objects, arrays, values)

    @property
    def written(self) -> frozenset[int]:
        """The positions among a call's objects of what the kernel writes."""
        return frozenset(a.source for a in self._arguments if a.is_written)

    @property
    def apart(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield pairs of a call's objects that must not share memory, and how far not to be apart.

        The address of the second less that of the first must not lie between the two numbers.
        """
        sources = [a.source for a in self._arguments]
        return ((sources[i], sources[j], low, high) for i, j, low, high in self._aliases)

    def _run(self, objects: list[Any], ordered: list[Any], values: list[Any]) -> Any:
        for holds, check in self._checks:
            self._require(holds(self._shapes, values), check, values)
        for position, initial in self._filled:
            self._fill(ordered[position], initial, self._arguments[position])
        counts = self._count(values) if self._count else self._counts
        if self._staged and any(counts.grids):
            self._launch_staged(counts, values, ordered)
        elif any(counts.grids):
            self._launcher(counts, values, ordered)
        return self._results(objects)

    @staticmethod
    def _fill(array: Any, initial: float | int | bool, argument: Argument) -> None:
        if argument.device is None:
            array_of(array)[...] = initial
        else:
            fill(array, initial, argument.where)

    def _results(self, objects: list[Any]) -> Any:
        for position, like in self._finished:
            objects[position] = in_library(objects[like], objects[position])
        if len(self._outputs) == 1:
            return objects[self._outputs[0]]
        return tuple(objects[o] for o in self._outputs) if self._outputs else None

    def _launch_staged(self, counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
        values, copies = list(values), list(arrays)
        for position, argument in self._staged:
            copies[position] = np.array(array_of(arrays[position]), order="C", copy=True)
            (values[position],), _ = describe([copies[position]], [], [argument.where])
        self._launcher(counts, values, copies)
        for position, argument in self._staged:
            if argument.is_written:
                array_of(arrays[position])[...] = copies[position]

    def _extend(self, objects: list[Any], arrays: list[Any], values: list[Any]) -> None:
        objects += self._defaults
        arrays += self._defaults
        values += self._defaults
        for wanted in self._allocations:
            like = None if wanted.like is None else objects[wanted.like]
            made = allocate(like, wanted.shape, wanted.dtype, wanted.where)
            objects.append(made)
            (address,), (array,) = describe([made], [], [wanted.where])
            values.append(address)
            arrays.append(array)

    def _refuse_pair(self, i: int, j: int, arrays: Sequence[Any]) -> None:
        pair = [self._arguments[k] for k in (i, j)]
        views = [
            view_of(arrays[k], argument.where) for k, argument in zip((i, j), pair, strict=True)
        ]
        check_aliases(views, [a.is_written for a in pair], [a.where for a in pair])

    def _counter(self, plan: LaunchPlan) -> CountsFunction:
        """Return what counts the blocks of every launch, and the extents of scratch."""
        grids = [compile_host(entry.grid) for entry in plan.entries]
        shapes = [[compile_host(extent) for extent in each.shape] for each in plan.scratch]

        def count(values: Sequence[Any]) -> Counts:
            return Counts(
                tuple(int(grid(self._shapes, values)) for grid in grids),
                tuple(
                    tuple(max(0, int(extent(self._shapes, values))) for extent in shape)
                    for shape in shapes
                ),
            )

        return count

    def _open_checks(self, checks: Sequence[Check]) -> Iterator[tuple[HostFunction, Check]]:
        """Require what the shapes settle; yield what depends on scalars."""
        for check in checks:
            holds = compile_host(check.condition)
            if any(map(reads_scalars, [check.condition, *(value for value, _ in check.values)])):
                yield holds, check
            else:
                self._require(holds(self._shapes, ()), check, ())

    def _require(self, holds: Any, check: Check, values: Sequence[Any]) -> None:
        if holds:
            return
        told = [
            dtype.numpy.type(compile_host(value)(self._shapes, values))
            for value, dtype in check.values
        ]
        raise FailedAssertion(
            printed(check.pieces, told) or UNMET,
            (check.span, ""),
            help="call it with arguments for which the assertion holds",
        )


def _to_finish(
    arguments: Sequence[Argument], allocations: Sequence[Allocation], first: int
) -> Iterator[tuple[int, int]]:
    """Yield the positions of outputs that become arrays of the library of those at the second."""
    libraries = {a.source: a.library for a in arguments}
    for number, wanted in enumerate(allocations):
        if wanted.like is not None and libraries.get(wanted.like) in FINISHED_LIBRARIES:
            yield first + number, wanted.like


def _counts_by_scalars(plan: LaunchPlan) -> bool:
    grids = [entry.grid for entry in plan.entries]
    extents = [extent for each in plan.scratch for extent in each.shape]
    return any(map(reads_scalars, [*grids, *extents]))


def _pairs_to_compare(
    arguments: Sequence[Argument], passed: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield each pair that may share memory, and the distances between which they would.

    Objects beyond the `passed` ones are allocated by the call and share memory with nothing.
    """
    arrays = [
        (i, a) for i, a in enumerate(arguments) if a.geometry is not None and a.source < passed
    ]
    for i, output in arrays:
        for j, other in arrays:
            is_first_mention = j < i or not other.is_written
            if output.is_written and i != j and is_first_mention:
                (low, high), (other_low, other_high) = output.offsets, other.offsets
                yield (i, j, low - other_high, high - other_low)


def array_of(array: Any) -> np.ndarray[Any, Any]:
    """Return an argument's memory as a NumPy array."""
    return as_numpy(array) if isinstance(array, ArrayView) else array
