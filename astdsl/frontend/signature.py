"""What a kernel's parameters take: from a function's parameters and annotations.

Invariant: a signature is read once, and every mistake in it is reported at its parameter.
"""

from __future__ import annotations
import __future__

import ast
import inspect
from collections.abc import Hashable, Iterator
from contextlib import suppress
from types import CellType, FunctionType, NoneType
from typing import Any

from astdsl.errors import BadSignature, SourceUnavailable
from astdsl.frontend.source_text import find_function
from astdsl.ir.core import IN, INOUT, OUT
from astdsl.ir.dtypes import DType, boolean, f32, i32
from astdsl.lang.annotations import ArraySpec, Role
from astdsl.lang.values import SUPPORTED
from astdsl.records import dataclass
from astdsl.source import Span

MISSING: Any = inspect.Parameter.empty
ANNOTATIONS = '`x: In[f32, "M N"]`, `y: Out[f32, "M N"]`, or a scalar `alpha: f32`'


@dataclass(frozen=True, slots=True)
class Parameter:
    """A positional parameter: an array by its `spec`, else a scalar.

    A scalar without a dtype takes that of the Python number. `optional` parameters may be left
    out or None.
    """

    name: str
    span: Span
    spec: ArraySpec | None = None
    dtype: DType | None = None
    default: Any = MISSING
    optional: bool = False

    @property
    def place(self) -> tuple[Span, str]:
        """The parameter as a place of an error report."""
        return (self.span, f"parameter `{self.name}`")


@dataclass(frozen=True, slots=True)
class ConstantParameter:
    """A keyword-only parameter: a compile-time constant."""

    name: str
    span: Span
    default: Any = MISSING


@dataclass(frozen=True, slots=True)
class Signature:
    """A kernel's name, its positional parameters, and its constants.

    `bound` is the name of a method's first parameter, empty for a function.
    """

    name: str
    span: Span
    params: tuple[Parameter, ...]
    constants: tuple[ConstantParameter, ...]
    bound: str = ""

    @property
    def roles(self) -> dict[str, str]:
        """The role of each parameter: in, out, inout or scalar."""
        return {p.name: p.spec.role if p.spec else "scalar" for p in self.params}


def signature_of(
    function: FunctionType, annotations: Annotations | None = None, *, is_method: bool = False
) -> Signature:
    """Read a function's signature. Raises BadSignature at the parameter that is malformed."""
    spans = parameter_spans(function)
    here = spans[""]
    parameters = list(_parameters(function))
    bound = parameters.pop(0).name if is_method and parameters else ""
    annotations = annotations or Annotations(function)
    params, constants = [], []
    for parameter in parameters:
        span = spans.get(parameter.name, here)
        if parameter.kind is parameter.KEYWORD_ONLY:
            constants.append(ConstantParameter(parameter.name, span, parameter.default))
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadSignature(
                f"a kernel has a fixed number of parameters, and `{parameter.name}` takes any",
                (span, ""),
                help=_instead_of_any(function),
            )
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise BadSignature(
                f"`{parameter.name}` can only be passed by position, and a kernel's can always be "
                "passed by name",
                (span, ""),
                help="leave out the `/`",
            )
        else:
            params.append(_parameter(parameter, span, annotations))
    return Signature(function.__name__, here, tuple(params), tuple(constants), bound)


def _instead_of_any(function: FunctionType) -> str:
    """Return what to do about a parameter that takes any: of a decorator, or the kernel's own."""
    if hasattr(function, "__wrapped__"):
        return f"put `@kernel` nearest to the `def` of `{function.__name__}`, below the decorator"
    return "write the parameters out, one for each array"


def _parameters(function: FunctionType) -> Iterator[inspect.Parameter]:
    """Yield a function's parameters without annotations.

    `inspect.signature` evaluates those on Python 3.14, before they can be reported in place.
    """
    code = function.__code__
    n, only = code.co_argcount, code.co_posonlyargcount
    names = iter(code.co_varnames)
    defaults = function.__defaults__ or ()
    values = [MISSING] * (n - len(defaults)) + list(defaults)
    for position, default in enumerate(values):
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        yield inspect.Parameter(next(names), kinds[position < only], default=default)
    keywords = [next(names) for _ in range(code.co_kwonlyargcount)]
    if code.co_flags & inspect.CO_VARARGS:
        yield inspect.Parameter(next(names), inspect.Parameter.VAR_POSITIONAL)
    for name in keywords:
        default = (function.__kwdefaults__ or {}).get(name, MISSING)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        yield inspect.Parameter(next(names), inspect.Parameter.VAR_KEYWORD)


def parameter_spans(function: FunctionType) -> dict[str, Span]:
    """Return the span of each parameter with its annotation; "" is that of the function's name.

    Where the source is not known, every span is the function's first line.
    """
    code = function.__code__
    try:
        source = find_function(function)
    except SourceUnavailable:
        first = Span(code.co_filename, code.co_firstlineno, 0, code.co_firstlineno, 0)
        return {"": first}
    node = source.node
    spans = {"": _name_span(source.file, node)}
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        spans[argument.arg] = _span(source.file, argument)
    for rest in (node.args.vararg, node.args.kwarg):
        if rest is not None:
            spans[rest.arg] = _span(source.file, rest)
    return spans


def option_span(function: FunctionType, name: str) -> Span:
    """Return the span of an option where the decorator states it, as `warpgroups=2`.

    One that is not written there by name has the span of the function's name.
    """
    spans = parameter_spans(function)
    try:
        source = find_function(function)
    except SourceUnavailable:
        return spans[""]
    if isinstance(source.node, ast.Lambda):
        return spans[""]
    calls = [d for d in source.node.decorator_list if isinstance(d, ast.Call)]
    stated = [k for call in calls for k in call.keywords if k.arg == name]
    return _span(source.file, stated[0]) if stated else spans[""]


def _span(file: str, node: ast.arg | ast.keyword) -> Span:
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return Span(file, node.lineno, node.col_offset, end_line, end_column)


def _name_span(file: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Span:
    is_lambda = isinstance(node, ast.Lambda)
    keyword = len("async def " if isinstance(node, ast.AsyncFunctionDef) else "def ")
    start = node.col_offset if is_lambda else node.col_offset + keyword
    length = len("lambda") if isinstance(node, ast.Lambda) else len(node.name.encode())
    return Span(file, node.lineno, start, node.lineno, start + length)


# What evaluating the text of an annotation may raise, beside an unknown name.
_FAILURES = (ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError)


class Annotations:
    """A function's annotations, evaluated where the function stands when the kernel is made.

    Python evaluates them later: those of `from __future__ import annotations` never, and from
    Python 3.14 on the others when somebody asks. Then a name may stand for something else, as in
    a loop that makes a kernel for each of some dtypes. What cannot be known yet is read later.
    """

    def __init__(self, function: Any) -> None:
        self._function: FunctionType = function
        self._known: dict[str, Any] = {}
        code = getattr(function, "__code__", None)
        for name in code.co_varnames[: code.co_argcount] if code else ():
            with suppress(NameError, *_FAILURES):
                self._known[name] = self._evaluated(self._written(name))

    def read(self, name: str, span: Span) -> Any:
        """Return an annotation as an object, MISSING where there is none."""
        if name in self._known:
            return self._known[name]
        try:
            return self._evaluated(self._alone(name))
        except NameError as error:
            raise BadSignature(
                f"the annotation of `{name}` uses a name that is not known here: {error}",
                (span, ""),
                help=self._way_out(),
            ) from None
        except _FAILURES as error:
            raise BadSignature(
                f"the annotation of `{name}` fails when it is evaluated: "
                f"{type(error).__name__}: {error}",
                (span, ""),
                help='write an array as `In[f32, "M N"]`, a scalar as a dtype',
            ) from None

    def all_known(self) -> dict[str, Any] | None:
        """Return the function's own `__annotations__`, None where some cannot be known yet."""
        try:
            return self._function.__annotations__
        except (AttributeError, NameError, *_FAILURES):
            return None

    def _way_out(self) -> str:
        if self._function.__code__.co_flags & __future__.annotations.compiler_flag:
            return (
                "with `from __future__ import annotations` only globals and names that the "
                "kernel's body uses too are known: move the name to the module, or leave the "
                "import out"
            )
        return "define the name before the kernel is called"

    def _written(self, name: str) -> Any:
        return self._function.__annotations__.get(name, MISSING)

    def _alone(self, name: str) -> Any:
        """Return an annotation although another of the function may fail.

        From Python 3.14 on all of them are evaluated together, also those that no kernel needs:
        of constants, or what is imported for type checkers only.
        """
        try:
            return self._written(name)
        except (NameError, *_FAILURES):
            source = find_function(self._function)
            arguments = source.node.args
            given = [*arguments.posonlyargs, *arguments.args]
            written = next(a.annotation for a in given if a.arg == name)
            if written is None:
                return MISSING
            code = compile(ast.Expression(written), source.file, "eval", dont_inherit=True)
            return eval(code, self._function.__globals__, self._names())  # noqa: S307

    def _evaluated(self, found: Any) -> Any:
        """Return what an annotation that is text stands for.

        The text is the user's own, from the function's own source; of one in quotes beside
        `from __future__ import annotations` it is the text of a text.
        """
        while isinstance(found, str):
            found = eval(found, self._function.__globals__, self._names())  # noqa: S307
        return found

    def _names(self) -> dict[str, Any]:
        """Return the names around the function that it, or its annotations, close over."""
        functions = (getattr(self._function, "__annotate__", None), self._function)
        cells = {name: cell for f in functions if f is not None for name, cell in _cells(f)}
        found = {name: _content(cell) for name, cell in cells.items()}
        known = {name: value for name, value in found.items() if value is not MISSING}
        return {**known.pop("__classdict__", {}), **known}


def _cells(function: Any) -> Iterator[tuple[str, CellType]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING


def _parameter(parameter: inspect.Parameter, span: Span, annotations: Annotations) -> Parameter:
    name, default = parameter.name, parameter.default
    found = annotations.read(name, span)
    if found is MISSING and isinstance(default, ArraySpec | Role | DType):
        raise BadSignature(
            f"the default of `{name}` is an annotation",
            (span, ""),
            help=f"an annotation follows a colon: `{name}: {_spelled(default)}`",
        )
    found, optional = _without_none(found)
    if isinstance(found, ArraySpec):
        if found.problem is not None:
            raise BadSignature(found.problem.message, (span, ""), help=found.problem.help)
        _check_array_default(name, span, default, optional or found.role == OUT)
        return Parameter(name, span, found, None, default, optional)
    dtype = SCALARS.get(found) if isinstance(found, Hashable) else None
    if optional or (dtype is None and found is not MISSING and not isinstance(found, DType)):
        raise BadSignature(
            f"`{name}` has an annotation that is neither an array's nor a scalar's: {found!r}",
            (span, ""),
            help=f"write {ANNOTATIONS}; put a compile-time constant after `*`",
        )
    kept = found if isinstance(found, DType) else dtype
    if kept is not None and kept not in PASSED:
        raise BadSignature(
            f"scalars of {kept} are not in this version",
            (span, ""),
            help=f"the dtypes that work are {', '.join(d.name for d in PASSED)}",
        )
    return Parameter(name, span, None, kept, default)


def _spelled(annotation: ArraySpec | Role | DType) -> str:
    if isinstance(annotation, DType):
        return annotation.name
    return f"{_ROLES[annotation.role]}[...]"


_ROLES = {IN: "In", OUT: "Out", INOUT: "InOut"}


# Dtypes of scalars: an 8-bit float is passed in an array.
PASSED = tuple(d for d in SUPPORTED if not d.is_float or d.bits > 8)
# Python's types as annotations of scalars.
SCALARS: dict[Any, DType] = {int: i32, float: f32, bool: boolean}


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Split `X | None` into X and whether None was there; `In` by itself is any array."""
    if isinstance(annotation, Role):
        return ArraySpec(annotation.role), False
    if isinstance(annotation, ArraySpec):
        return annotation, annotation.optional
    arguments = getattr(annotation, "__args__", ())
    if NoneType in arguments and len(arguments) == 2:
        return next(a for a in arguments if a is not NoneType), True
    return annotation, False


def _check_array_default(name: str, span: Span, default: Any, optional: bool) -> None:
    if default not in (MISSING, None):
        raise BadSignature(
            f"the array `{name}` has a default, and an array's can only be None",
            (span, ""),
            help="leave the default out",
        )
    if default is None and not optional:
        raise BadSignature(
            f"`{name}` has the default None, which its annotation does not allow",
            (span, ""),
            help="annotate it `In[...] | None`",
        )
