"""A call, resolved: which array is which parameter, what is allocated, what is to be compiled.

Invariant: everything here follows from shapes, strides, dtypes and constants, so it is done once
for each key of `runtime.launch.describe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from astdsl.frontend.binding import Bound, bind, scalar_converter, scalar_dtype
from astdsl.frontend.dims import Fitted, fit
from astdsl.frontend.signature import Parameter, Signature
from astdsl.ir.dtypes import DType, f4e2m1, u8
from astdsl.lang.nibbles import byte_of
from astdsl.lang.params import DEFAULTS, CompilerParams
from astdsl.records import dataclass
from astdsl.request import Request, RequestedArgument, as_key
from astdsl.runtime.arrays import ArrayView, Where, check_written
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.classes import Geometry, geometry_of
from astdsl.runtime.devices import Device, check_places
from astdsl.runtime.launch import Allocation, Argument, Launch
from astdsl.runtime.libraries import view_of
from astdsl.runtime.nibbles import (
    PACKED_LIBRARIES,
    elements_of,
    is_packed,
    shape_in_bytes,
)

NEW_ARRAY_ALIGN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Callee:
    """What is called: the function, its signature, a method's first argument, and its options.

    A kernel that was loaded from a file has no function.
    """

    function: FunctionType | None
    signature: Signature
    receiver: tuple[Any, ...] = ()
    warpgroups: int = 0
    params: CompilerParams = DEFAULTS


@dataclass(frozen=True, slots=True)
class Call:
    """A resolved call.

    A call's objects are the `passed` ones in their order, then `defaults`, then `allocations`;
    an argument's `source` and `outputs` are positions among them.
    """

    request: Request
    arguments: tuple[Argument, ...]
    passed: int
    defaults: tuple[Any, ...]
    allocations: tuple[Allocation, ...]
    outputs: tuple[int, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each argument; () for a scalar."""
        return tuple(a.geometry.shape if a.geometry else () for a in self.arguments)


def where(p: Parameter) -> Where:
    """Return a parameter as arrays' errors name it."""
    return Where(p.name, p.span)


def resolve(callee: Callee, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Resolve a call. Raises BadArgument and what reading its arrays raises."""
    signature = callee.signature
    bound = bind(signature, args, kwargs)
    given = {p.name: bound.given[p.name] for p in signature.params if p.name in bound.given}
    views = {
        p.name: view_of(given[p.name], where(p))
        for p in signature.params
        if p.spec and given.get(p.name) is not None
    }
    for p in signature.params:
        if p.spec and p.spec.role != "in" and p.name in views:
            check_written(views[p.name], where(p))
        if p.spec is None and p.name in given:  # ahead of dims that an array there would settle
            scalar_dtype(p, type(given[p.name]))
    shown = {
        p.name: elements_of(view, where(p)) if is_packed(view, p.spec.dtypes) else view
        for p in signature.params
        if p.spec and (view := views.get(p.name)) is not None
    }
    fitted = fit(signature.params, shown, bound.constants)
    names = [p.name for p in signature.params]
    mentioned = [*names[: len(args)], *(name for name in kwargs if name in names)]
    # An output passed as None is an omitted one, though the None stands among the objects.
    passed = [name if name in given else "" for name in mentioned]
    defaults = [name for name in given if name not in passed]
    made = [p for p in signature.params if p.name not in given]
    order = [*passed, *defaults, *(p.name for p in made)]
    arrays = [p.name for p in signature.params if p.name in views]
    like = order.index(arrays[0]) if arrays else None
    return Call(
        request=_request(callee, bound, views, fitted),
        arguments=tuple(_arguments(signature, given, views, fitted, order)),
        passed=len(passed),
        defaults=tuple(given[name] for name in defaults),
        allocations=tuple(
            Allocation(where(p), new.shape, new.dtype, like)
            for p in made
            for new in (_geometry(p, views, fitted),)
        ),
        outputs=tuple(
            order.index(p.name) for p in signature.params if p.spec and p.spec.role == "out"
        ),
    )


def _geometry(p: Parameter, views: Mapping[str, ArrayView], fitted: Fitted) -> Geometry:
    """Return the geometry that the kernel sees: the argument's own, or that of a new array."""
    view = views.get(p.name)
    if view is None:
        shape, dtype = fitted.shapes[p.name], fitted.dtypes[p.name]
        near = next(iter(views.values()), None)
        if dtype is f4e2m1 and near is not None and near.library in PACKED_LIBRARIES:
            return new_geometry(shape_in_bytes(shape, where(p)), u8)
        return new_geometry(shape, dtype)
    return new_geometry(view.shape, view.dtype) if _is_staged(view) else geometry_of(view)


def _is_staged(view: ArrayView) -> bool:
    """Whether elements lie across their natural alignment, which no load of the GPU takes."""
    return view.address % view.dtype.bytes != 0


def new_geometry(shape: tuple[int, ...], dtype: DType) -> Geometry:
    """Return the geometry of an array that is allocated for a launch."""
    return Geometry(shape, row_major(shape), dtype, NEW_ARRAY_ALIGN_BYTES)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a new array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _arguments(
    signature: Signature,
    given: Mapping[str, Any],
    views: Mapping[str, ArrayView],
    fitted: Fitted,
    order: list[str],
) -> list[Argument]:
    """Return what the module's parameters are bound to; parameters that are None have none."""
    found = []
    for p in signature.params:
        source = order.index(p.name)
        if p.spec is None:
            kind = type(given[p.name])
            dtype, convert = scalar_dtype(p, kind), scalar_converter(p, kind)
            found.append(Argument(where(p), source, "scalar", dtype, convert=convert))
        elif given.get(p.name, p) is not None:
            geometry = _geometry(p, views, fitted)
            dtype, initial = fitted.dtypes[p.name], _initial(p, geometry, fitted)
            view = views.get(p.name)
            staged = geometry_of(view) if view is not None and _is_staged(view) else None
            near = view or next(iter(views.values()), None)  # where an omitted output is made
            found.append(
                Argument(
                    where(p),
                    source,
                    p.spec.role,
                    dtype,
                    geometry,
                    initial,
                    staged=staged,
                    library=near.library if near else "numpy",
                    device=near.device if near else None,
                )
            )
    return found


def _request(
    callee: Callee, bound: Bound, views: Mapping[str, ArrayView], fitted: Fitted
) -> Request:
    signature = callee.signature
    arguments = [_requested(p, bound, views, fitted) for p in signature.params]
    constants = dict(bound.constants)
    key = [(name, constant_key(v)) for name, v in constants.items()]
    if signature.bound:
        constants[signature.bound] = callee.receiver[0]
        key.append((signature.bound, as_key(callee.receiver[0])))
    return Request(
        function=callee.function,
        name=signature.name,
        arguments=tuple(arguments),
        constants=constants,
        constants_key=tuple(key),
        warpgroups=callee.warpgroups,
        params=callee.params,
    )


def _requested(
    p: Parameter, bound: Bound, views: Mapping[str, ArrayView], fitted: Fitted
) -> RequestedArgument:
    if p.spec is None:
        dtype = scalar_dtype(p, type(bound.given[p.name]))
        return RequestedArgument(p.name, "scalar", dtype)
    if bound.given.get(p.name, p) is None:
        return RequestedArgument(p.name, p.spec.role, None)
    geometry = _geometry(p, views, fitted)
    return RequestedArgument(
        name=p.name,
        role=p.spec.role,
        dtype=fitted.dtypes[p.name],
        geometry=geometry,
        static=fitted.static[p.name],
        names=fitted.names[p.name],
        initial=_initial(p, geometry, fitted),
    )


def _initial(p: Parameter, geometry: Geometry, fitted: Fitted) -> float | int | bool | None:
    """Return what each element of the memory of an output starts as: of packed memory a byte."""
    initial = None if p.spec is None else p.spec.initial
    if initial is None or (geometry.dtype, fitted.dtypes[p.name]) != (u8, f4e2m1):
        return initial
    return byte_of(initial)


def constant_key(value: Any) -> Any:
    """Return what tells constants apart that compare equal: 1, 1.0 and True, 0.0 and -0.0."""
    kind = type(value)
    if kind is tuple:
        return tuple(map(constant_key, value))
    return (kind, repr(value)) if kind is float else (kind, value)


def prepare(call: Call, program: Any, device: Device, target: str) -> Launch:
    """Load a program on a device for the arguments of a call."""
    names = tuple(p.name for p in program.module.params)
    expected = tuple(a.where.name for a in call.arguments)
    assert names == expected, f"the module has parameters {names}, the call {expected}"
    check_places(device, call.arguments)
    plan, ptx, cubin, module = None, "", b"", program.module
    if device.needs_cubin:  # Before the PTX: the assembler starts while that is made.
        cubin = program.cubin(target).image
    if device.needs_ptx:
        code = program.code(target)
        plan, ptx = code.plan, code.ptx
    else:
        module = program.settled(target)
    launcher = device.load(Artifact(module, ptx, plan, cubin), call.arguments)
    return Launch(
        call.arguments,
        call.allocations,
        call.outputs,
        launcher,
        passed=call.passed,
        defaults=call.defaults,
        plan=plan,
    )
