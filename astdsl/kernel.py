"""`@kernel`: a Python function that is compiled for the arguments of a call and launched.

Invariant: nothing is compiled or refused before the first call; a call with arguments of known
shapes goes straight to its prepared launch, provided what the trace read is still the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, overload

from astdsl import backend, on_demand
from astdsl.call import Callee, prepare, resolve, row_major, where
from astdsl.compiled import CompiledKernel, spread_keywords
from astdsl.decorated import call_of, refusal, where_decorated
from astdsl.errors import BadArgument, BadSignature, UnsupportedFeature, did_you_mean
from astdsl.frontend.signature import Annotations, Signature, option_span, signature_of
from astdsl.ir.dtypes import DType, named_dtype
from astdsl.lang.params import DEFAULTS, FIELDS, CompilerParams
from astdsl.lang.params import LATER as LATER_PARAMS
from astdsl.records import dataclass, replace
from astdsl.request import as_key
from astdsl.runtime.arrays import ArrayView, Where
from astdsl.runtime.boundary import Boundary
from astdsl.runtime.devices import find_device, selected_device, settled_target
from astdsl.runtime.emulation import check_options, emulated
from astdsl.runtime.launch import Launch, describe
from astdsl.runtime.recent import Recent, recent_of
from astdsl.source import NOWHERE, Span

if TYPE_CHECKING:
    from typing import Unpack

    from astdsl.compile import Program
    from astdsl.lowered import Lowered
    from astdsl.runtime.emulation import Emulation

# Prepared launches that a kernel keeps; they are made again when there are more.
MAX_LAUNCHES = 4096


@dataclass(frozen=True, slots=True)
class Spec:
    """An array that is not there: a shape and a dtype, for `lower`."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def view(self) -> ArrayView:
        """A row-major, aligned array of this shape, without memory."""
        return ArrayView(0, self.shape, row_major(self.shape), self.dtype, True, None, "spec")


def spec(shape: Any, dtype: Any) -> Spec:
    """Describe an array for `lower` without making one: row-major and aligned."""
    dims = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    element = named_dtype(dtype)
    if element is None or any(type(d) is not int or d < 0 for d in dims):
        raise BadArgument(
            f"`spec` takes a shape and a dtype, got {shape!r} and {dtype!r}",
            help="write `spec((64, 64), f32)`",
        )
    return Spec(dims, element)


class _Method:
    """The calls of one function with one number of bound arguments: signature, programs, launches.

    `launches` maps the key of a call to what it launches.
    """

    def __init__(
        self,
        function: FunctionType,
        annotations: Annotations,
        options: Mapping[str, Any],
        is_method: bool,
    ) -> None:
        self.function = function
        self._annotations = annotations
        self.warpgroups: int = options.get("warpgroups", 0)
        self._params = params_of(options)
        self._is_method = is_method
        self.programs = on_demand.Programs()
        self.launches: dict[tuple[Any, ...], tuple[Program, Launch]] = {}
        self.recent: dict[tuple[Any, ...], Recent] = {}
        self._seen: Launch | None = None

    @cached_property
    def signature(self) -> Signature:
        """The function's signature, read at the first call."""
        return signature_of(self.function, self._annotations, is_method=self._is_method)

    @cached_property
    def by_name(self) -> dict[str, Where]:
        """Each positional parameter, as errors of arrays name it."""
        return {p.name: where(p) for p in self.signature.params}

    @cached_property
    def where(self) -> tuple[Where, ...]:
        """Each positional parameter, in order."""
        return tuple(self.by_name.values())

    def remember(
        self,
        key: tuple[Any, ...],
        made: tuple[Program, Launch],
        objects: Sequence[Any],
        values: Sequence[Any],
    ) -> None:
        """Note the last launch of a place and number of arguments, by a check of its objects.

        It is written when a launch comes a second time, since that takes longer than one call.
        """
        program, launch = made
        if launch is self._seen:
            recent = recent_of(objects, values, program, launch)
            if recent is not None:
                self.recent[key] = recent
        self._seen = launch

    def callee(self, receiver: tuple[Any, ...]) -> Callee:
        """Return what is called, with a method's first argument."""
        return Callee(self.function, self.signature, receiver, self.warpgroups, self._params)


class Kernel:
    """A kernel: call it, place it by `on`, or look at it by `lower`."""

    def __init__(self, function: Any, options: Mapping[str, Any] | None = None) -> None:
        self.__wrapped__: Any
        functools.update_wrapper(self, function)
        self.__name__: str = getattr(function, "__name__", type(function).__name__)
        self.boundary = Boundary(self.__name__)
        self._options = dict(options or {})
        self._place = NOWHERE if isinstance(function, FunctionType) else where_decorated()
        annotations = Annotations(function)
        if (known := annotations.all_known()) is not None:
            self.__annotations__ = known
        self._plain = _Method(function, annotations, self._options, is_method=False)
        self._bound = _Method(function, annotations, self._options, is_method=True)

    def __repr__(self) -> str:
        return f"<kernel {getattr(self, '__qualname__', '?')}>"

    def __reduce__(self) -> str:
        """Pickle and copy a kernel as Python does a function: by its name, as itself."""
        return str(getattr(self, "__qualname__", self.__name__))

    @property
    def warpgroups(self) -> int:
        """How many warpgroups of a block the kernel is written for; 0: for the block."""
        return self._plain.warpgroups

    @property
    def signature(self) -> Signature:
        """What the parameters take. Raises BadSignature."""
        return self._plain.signature

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else Placed(self, receiver=(instance,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch on the selected device; return the outputs, one by itself, several as a tuple."""
        with self.boundary:
            return self._run("", "", (), args, kwargs)

    def on(self, device: str = "", *, target: str = "", **options: Unpack[Emulation]) -> Placed:
        """Return this kernel placed on a device, or compiled for a target.

        The emulator has options, which `astdsl.device` explains: `completion`, `order`,
        `fp8_accumulate`. Raises DeviceUnavailable.
        """
        return Placed(self).on(device, target=target, **options)

    def lower(self, *args: Any, target: str = "", **kwargs: Any) -> Lowered:
        """Compile for arrays or `spec`s without launching; nothing is done before it is asked for.

        The target is a keyword here, so a kernel's own parameter cannot be named `target`.
        """
        with self.boundary:
            return self._lower(target, (), args, kwargs)

    def _check(self) -> None:
        """Refuse what the decorator was given, at the first call."""
        function = self._plain.function
        if not isinstance(function, FunctionType):
            raise refusal(function, self._place)
        _check_options(self._options, function)

    def _method(self, receiver: tuple[Any, ...]) -> _Method:
        return self._bound if receiver else self._plain

    def _run(
        self,
        device: str,
        target: str,
        receiver: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        method = self._method(receiver)
        if not method.launches:
            self._check()
        chosen = device or selected_device()
        place = chosen, target or settled_target(chosen)
        objects = list(args)
        is_plain = not (kwargs or receiver)
        if is_plain and (last := method.recent.get((place, len(args)))) is not None:
            known = last.known(objects)
            if known is not None and last.owner.is_valid():
                return last.launch.again(objects, known)
        key: list[Any] = [place, *map(as_key, receiver), len(args)]
        at = spread_keywords(method.by_name, objects, kwargs, key) if kwargs else method.where
        values, arrays = describe(objects, key, at)
        launch = self._launch(method, receiver, tuple(key), args, kwargs)
        if is_plain:
            method.remember((place, len(args)), method.launches[tuple(key)], objects, values)
        return launch(objects, arrays, values)

    def _launch(
        self,
        method: _Method,
        receiver: tuple[Any, ...],
        key: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Launch:
        try:
            found = method.launches.get(key)
        except TypeError:  # a constant without a hash: resolving the call names it
            found = None
        if found is not None and found[0].is_valid():
            return found[1]
        self._check()
        device, target = key[0]
        call = resolve(method.callee(receiver), args, kwargs)
        program = method.programs.get(call.request)
        name = backend.check_target(target or backend.needed_target(program.module))
        chosen = find_device(device)
        if not chosen.needs_ptx:
            program.compiled(name)  # Every device refuses what no launch could do.
        launch = prepare(call, program, chosen, name)
        if len(method.launches) >= MAX_LAUNCHES:
            method.launches.clear()
        method.launches[key] = (program, launch)
        return launch

    def _lower(
        self,
        target: str,
        receiver: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Lowered:
        self._check()
        method = self._method(receiver)
        args = tuple(_without_spec(a) for a in args)
        kwargs = {name: _without_spec(value) for name, value in kwargs.items()}
        call = resolve(method.callee(receiver), args, kwargs)
        program = method.programs.get(call.request)
        settled = target or settled_target(selected_device())
        name = backend.check_target(settled or backend.needed_target(program.module))
        constants = {k: v for k, v in kwargs.items() if k not in method.by_name}

        def compiled() -> CompiledKernel:
            return CompiledKernel(method.callee(receiver), program, name, constants)

        return on_demand.lowered(program, call, name, compiled)


class _Static(Kernel):
    """The kernel of a `staticmethod`: an object's is the class's."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self


class _OfClass(Kernel):
    """The kernel of a `classmethod`: its first argument is the class."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return Placed(self, receiver=(owner or type(instance),))


def _without_spec(value: Any) -> Any:
    return value.view if isinstance(value, Spec) else value


class Placed:
    """A kernel with its device, its target or its first argument settled."""

    def __init__(
        self,
        kernel: Kernel,
        device: str = "",
        target: str = "",
        receiver: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.__name__: str
        self.__wrapped__: Any
        functools.update_wrapper(self, kernel)
        self._kernel = kernel
        self._place = (device, target, receiver)
        self._options = dict(options or {})

    def __repr__(self) -> str:
        return f"<{self._kernel!r} placed>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy what it is made of; the kernel by its name."""
        return Placed, (self._kernel, *self._place, self._options)

    @property
    def receiver(self) -> tuple[Any, ...]:
        """A method's first argument, empty for a function."""
        return self._place[2]

    @property
    def warpgroups(self) -> int:
        """How many warpgroups of a block the kernel is written for; 0: for the block."""
        return self._kernel.warpgroups

    @property
    def signature(self) -> Signature:
        """What the parameters take, a method's first left out. Raises BadSignature."""
        return self._kernel._method(self.receiver).signature

    @property
    def is_placed(self) -> bool:
        """Whether a device or a target is settled."""
        return any(self._place[:2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch on this device."""
        with self._kernel.boundary:
            if not self._options:
                return self._kernel._run(*self._place, args, kwargs)
            with emulated(self._options):
                return self._kernel._run(*self._place, args, kwargs)

    def on(self, device: str = "", *, target: str = "", **options: Unpack[Emulation]) -> Placed:
        """Return the kernel on another device or for another target, or emulated otherwise."""
        old_device, old_target, receiver = self._place
        place = device or old_device, target or old_target, receiver
        every = {**(self._options if place[0] == old_device else {}), **options}
        with self._kernel.boundary:
            check_options(place[0], every)
        return Placed(self._kernel, *place, every)

    def lower(self, *args: Any, target: str = "", **kwargs: Any) -> Lowered:
        """Compile for arrays or `spec`s without launching."""
        _, placed, receiver = self._place
        with self._kernel.boundary:
            return self._kernel._lower(target or placed, receiver, args, kwargs)


# A block has 1,024 threads at most, a warpgroup 128.
MOST_WARPGROUPS = 8
# What `@kernel(...)` takes, what each may be, and what to do instead.
OPTIONS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "warpgroups": (
        lambda value: type(value) is int and 1 <= value <= MOST_WARPGROUPS,
        f"a number from 1 to {MOST_WARPGROUPS}",
        "`@kernel(warpgroups=2)` is written for each of two; leave it out otherwise",
    ),
    "approx_math": FIELDS["approx_math"],
    "check": FIELDS["check"],
    "params": (
        lambda value: isinstance(value, CompilerParams),
        "a `CompilerParams`",
        "write `@kernel(params=CompilerParams(approx_math=True))`",
    ),
}
# Options that are to come: what they are about, and what to do until then.
LATER = {
    "cluster": ("clusters", "leave `cluster` out"),
    "target": ("targets of a decorator", 'name it at the call: `f.on(target="sm_100a")(x)`'),
}


def params_of(options: Mapping[str, Any]) -> CompilerParams:
    """Return what `params=` says, with what the decorator's own keywords state."""
    given = options.get("params")
    params = given if isinstance(given, CompilerParams) else DEFAULTS
    own = {name: options[name] for name in ("approx_math", "check") if name in options}
    return replace(params, **own) if own else params


def _check_params(params: CompilerParams, place: tuple[Span, str]) -> None:
    """Refuse fields that this version does not do, and values that a field may not have."""
    for name, hint in LATER_PARAMS.items():
        if getattr(params, name) != getattr(DEFAULTS, name):
            raise UnsupportedFeature(
                f"`CompilerParams({name}=...)` is not in this version", place, help=hint
            )
    for name, (is_fit, wanted, hint) in FIELDS.items():
        value = getattr(params, name)
        if not is_fit(value):
            raise BadSignature(
                f"`CompilerParams({name}=...)` is {wanted}, got {value!r}", place, help=hint
            )


def _check_options(options: Mapping[str, Any], function: FunctionType) -> None:
    """Refuse options that this version does not know; the first call asks, not the decorator."""
    for name, value in options.items():
        place = (option_span(function, name), "")
        if name in LATER:
            what, hint = LATER[name]
            raise UnsupportedFeature(
                f"`@kernel({name}=...)`: {what} are not in this version", place, help=hint
            )
        if name not in OPTIONS:
            raise BadSignature(
                f"`@kernel` has no option `{name}`",
                place,
                help=did_you_mean(name, [*OPTIONS, *LATER]) or f"it has {', '.join(OPTIONS)}",
            )
        is_fit, wanted, hint = OPTIONS[name]
        if not is_fit(value):
            raise BadSignature(
                f"`@kernel({name}=...)` is {wanted}, got {value!r}",
                place,
                help=hint,
            )
        if name == "params":
            _check_params(value, place)


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(**options: Any) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a kernel of a Python function: `@kernel`, or `@kernel(warpgroups=1)`.

    With `warpgroups`, 1 to 8, the function is written for each warpgroup of a block; without, for
    the block, which has as many as the compiler chooses. `approx_math=True` allows approximate
    instructions, `check=False` launches a kernel whose barriers and copies are proved wrong;
    `params=CompilerParams(...)` says these and more.
    """
    if function is None:
        return lambda decorated: kernel_of(decorated, options)
    return kernel_of(function, options)


def kernel_of(function: Any, options: Mapping[str, Any]) -> Kernel | Placed:
    """Return the kernel of a function; of a bound method or a callable, placed on its object."""
    if isinstance(function, MethodType):
        return Placed(Kernel(function.__func__, options), receiver=(function.__self__,))
    if type(function) in DESCRIPTORS:
        return DESCRIPTORS[type(function)](function.__func__, options)
    if not isinstance(function, FunctionType) and (method := call_of(function)) is not None:
        return kernel_of(method, options)
    return Kernel(function, options)


DESCRIPTORS: dict[type, type[Kernel]] = {classmethod: _OfClass, staticmethod: _Static}
