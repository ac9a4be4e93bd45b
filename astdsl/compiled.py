"""A kernel compiled once, ready to launch, to save, and to be loaded again.

Invariant: it needs neither the function nor what its trace read, so a saved one launches in a
process that has no source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from astdsl import backend, on_demand
from astdsl.call import Call, Callee, constant_key, prepare, resolve, where
from astdsl.errors import BadArgument, DeviceUnavailable
from astdsl.frontend.signature import Signature
from astdsl.ir.core import Module
from astdsl.ir.types import RefType, Type
from astdsl.lang.memory import opens
from astdsl.records import dataclass, replace
from astdsl.runtime.arrays import Where
from astdsl.runtime.artifact import Code
from astdsl.runtime.boundary import Boundary
from astdsl.runtime.classes import tell_apart
from astdsl.runtime.devices import find_device, selected_device
from astdsl.runtime.launch import Launch, describe
from astdsl.runtime.recent import Recent, recent_of

if TYPE_CHECKING:
    from astdsl.saved import Saved


class Compilation(Protocol):
    """What is launched: a program of this process, or one that was loaded."""

    @property
    def module(self) -> Module:
        """The typed IR."""

    @property
    def static(self) -> Mapping[tuple[str, int], int]:
        """The dims that are compile-time constants."""

    def code(self, target: str) -> Code:
        """Return PTX and launch plan."""

    def cubin(self, target: str) -> Any:
        """Return the assembled kernel."""


@dataclass(frozen=True, slots=True)
class _Image:
    image: bytes


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A compilation that comes from a file."""

    file: Saved

    @property
    def module(self) -> Module:
        return self.file.module

    @property
    def static(self) -> Mapping[tuple[str, int], int]:
        return self.file.static

    def settled(self, target: str) -> Module:
        return backend.settle_streams(self.module, target)

    def code(self, target: str) -> Code:
        return self.file.code

    def cubin(self, target: str) -> _Image:
        # Without one the driver assembles the PTX.
        return _Image(self.file.cubin)


def spread_keywords(
    by_name: Mapping[str, Where], objects: list[Any], kwargs: Mapping[str, Any], key: list[Any]
) -> Sequence[Where]:
    """Add arguments passed by name to `objects` or, if constants, to `key`; say where each goes."""
    at = list(by_name.values())[: len(objects)]
    for name, value in kwargs.items():
        found = by_name.get(name)
        if found is None:
            key.append((name, constant_key(value)))
        else:
            key.append(name)
            objects.append(value)
            at.append(found)
    return at


class CompiledKernel:
    """A kernel compiled once: it launches without looking at what its trace read.

    Arguments of other shapes are welcome while their classes are the same; others are refused.
    """

    def __init__(
        self, callee: Callee, program: Compilation, target: str, constants: Mapping[str, Any]
    ) -> None:
        self._callee = callee
        self._program = program
        self._target = target
        self._constants = dict(constants)
        self._boundary = Boundary(program.module.name)
        self._launches: dict[tuple[Any, ...], Launch] = {}
        self._recent: dict[tuple[str, int], Recent] = {}

    def __repr__(self) -> str:
        return f"<compiled {self._program.module.name} for {self._target}>"

    @cached_property
    def _by_name(self) -> dict[str, Where]:
        return {p.name: where(p) for p in self._callee.signature.params}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch on the selected device; constants are those it was compiled with."""
        with self._boundary:
            objects = list(args)
            place = selected_device(), len(args)
            last = None if kwargs else self._recent.get(place)
            known = last.known(objects) if last else None
            if last and known is not None:
                return last.launch.again(objects, known)
            key: list[Any] = [place]
            at = spread_keywords(self._by_name, objects, kwargs, key)
            values, arrays = describe(objects, key, at)
            launch = self._launches.get(tuple(key))
            if launch is None:
                launch = self._launches[tuple(key)] = self._prepare(args, kwargs)
            elif not kwargs:
                # A second call like one before: it pays to write its check.
                recent = recent_of(objects, values, self._program, launch)
                if recent is not None:
                    self._recent[place] = recent
            return launch(objects, arrays, values)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
        callee = self._callee
        given = [name for name in kwargs if name not in self._by_name]
        if given:
            raise BadArgument(
                f"`{given[0]}` is settled in a compiled kernel",
                (callee.signature.span, ""),
                help="lower the kernel again with another value",
            )
        call = resolve(callee, args, {**kwargs, **self._constants})
        self._check_classes(call, callee.signature)
        return prepare(call, self._program, find_device(selected_device()), self._target)

    def _check_classes(self, call: Call, signature: Signature) -> None:
        static = frozenset(self._program.static)
        wanted = {param.name: param.value.type for param in self._program.module.params}
        for argument in call.request.arguments:
            given, expected = argument.type_with(static), wanted.get(argument.name)
            if given != expected:
                raise BadArgument(
                    f"`{argument.name}` {_difference(given, expected)}",
                    (signature.span, ""),
                    help="lower the kernel for such arguments, or call it: that compiles what it "
                    "needs",
                )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the kernel to a file: PTX, cubin, launch plan, typed IR, signature.

        The cubin is left out where there is no assembler; the driver assembles the PTX then.
        """
        try:
            cubin = self._program.cubin(self._target).image
        except DeviceUnavailable:
            cubin = b""
        on_demand.write_saved(
            Path(path),
            signature=self._settled_signature(),
            module=self._program.module,
            static=dict(self._program.static),
            code=self._program.code(self._target),
            cubin=cubin,
        )

    def _settled_signature(self) -> Signature:
        """Return the signature with the constants that the kernel was compiled with."""
        signature = self._callee.signature
        constants = tuple(
            replace(c, default=self._constants.get(c.name, c.default)) for c in signature.constants
        )
        return replace(signature, constants=constants, bound="")


def _difference(given: Type | None, wanted: Type | None) -> str:
    """Say what an argument is that a kernel is not compiled for; None is one that is left out."""
    if given is None:
        return "is left out, and the kernel is compiled for calls with it"
    if wanted is None:
        return "is given, and the kernel is compiled for calls without it"
    found, other = f"is {given}", str(wanted)
    if isinstance(given, RefType) and isinstance(wanted, RefType):
        found, other = tell_apart(given, wanted)
    return f"{found}, and the kernel is compiled for {other}"


@opens("load")
def load(path: str | PathLike[str]) -> CompiledKernel:
    """Return a kernel that was saved by `CompiledKernel.save`, ready to launch.

    Nothing of it is executed but on the device. Raises BadArgument for another file.
    """
    file = on_demand.read_saved(Path(path))
    return CompiledKernel(file.callee, _Loaded(file), file.code.plan.target, {})
