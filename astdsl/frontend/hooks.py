"""What rewritten code calls where Python's own control flow stood.

Invariant: on Python values a hook does what Python does; on kernel values it calls lang. No hook
knows a name of the user's: values decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from astdsl.errors import FailedAssertion, KernelError, NotConstant, TypeMismatch, UnsupportedSyntax
from astdsl.frontend.calls import call, users_method
from astdsl.frontend.reads import is_kernel_value
from astdsl.frontend.session import Session
from astdsl.ir import ops
from astdsl.lang import branching
from astdsl.lang.blocks import call_unless, trace_branches, trace_for, trace_while
from astdsl.lang.branching import as_condition
from astdsl.lang.builtins import Text, told
from astdsl.lang.names import Watch, any_flag, require_usable, restore, states
from astdsl.lang.operands import effects_of
from astdsl.lang.tracing import NeedsConstant, emit, fault
from astdsl.lang.values import Tile

# Exceptions of the trace itself.
OURS = (KernelError, NeedsConstant)
# What `in` compares a kernel value with, element by element.
LISTED = frozenset({dict, frozenset, list, set, tuple})
REFUSED_HELP = {
    "yield": "return a list or a tuple of the values",
    "yield from": "return a list or a tuple",
    "await": "a kernel runs to its end; asynchronous copies are what pipelines are for",
    "except*": "a plain `except`",
    **{
        f"{leave} in finally": "leave behind the `try`" for leave in ("break", "continue", "return")
    },
    "t-string": "an f-string shows the values when the kernel runs",
    "global": "return the value, or assign a name of the kernel",
    "async for": "a plain `for`",
    "async with": "a plain `with`",
    "async def": "a plain `def`",
}


def is_kernel(value: object) -> bool:
    """Whether a value is known only when the kernel runs."""
    return type(value) is Tile


@contextmanager
def _under_condition(session: Session, is_unknown: bool = True) -> Iterator[None]:
    session.conditions += is_unknown
    try:
        yield
    finally:
        session.conditions -= is_unknown


def if_(session: Session, condition: Any, then: FunctionType, *otherwise: FunctionType) -> None:
    """`if condition: then() else: otherwise()`."""
    if is_kernel(condition):
        sides = [session.block(side) for side in (then, *otherwise)]
        with _under_condition(session):
            trace_branches(as_condition(condition), sides[0], sides[1] if otherwise else None)
    elif condition:
        then()
    elif otherwise:
        otherwise[0]()


def unless(session: Session, flags: tuple[Any, ...], rest: FunctionType) -> None:
    """Run what follows an early exit, unless a flag says that it was taken."""
    flag = any_flag(list(flags))
    with _under_condition(session, is_kernel(flag)):
        call_unless(flag, session.block(rest))


def for_(session: Session, items: Any, body: FunctionType) -> None:
    """`for item in items: body(item)`: a range is a loop of the kernel."""
    block = session.block(body)
    kernel_for = getattr(type(items), "__kernel_for__", None)
    if type(items) is range:
        with session.trace.loop():
            trace_for(items.start, items.stop, items.step, block)
    elif kernel_for is not None:
        kernel_for(items, block)
    else:
        for item in items:
            call_unless(block.stopped(), block.bind(item))
            if block.stopped() is True:
                break


def while_(session: Session, test: FunctionType, body: FunctionType) -> None:
    """`while test(): body()`: of a kernel condition, or one that becomes so, a loop of the kernel.

    Where the first step makes the condition a kernel value (`while True` with a `break`), the step
    is taken back and traced as part of the loop.
    """
    condition, block = session.block(test), session.block(body)
    cells = {**condition.cells, **block.cells}
    builder = session.trace.builder
    go = condition.call()
    while not is_kernel(go):
        if not go:
            return
        before, mark, watch = states(cells), builder.mark(), Watch(condition, block)
        block.call()
        stopped = block.stopped()
        go = condition.call() if stopped is False else stopped is not True
        if is_kernel(stopped) or is_kernel(go):
            watch.require_unchanged()
            builder.cut(mark)
            restore(cells, before)
            go = True
            break
    with session.trace.loop():
        trace_while(go, condition, block)


def with_(session: Session, context: Any, body: FunctionType) -> None:
    """`with context as value: body(value)`: what it means is the context's own business."""
    require_usable(context)
    kernel_with = getattr(type(context), "__kernel_with__", None)
    if kernel_with is not None:
        kernel_with(context, session.block(body))
        return
    _require_context(context)
    with context as value:
        body(value)


def _require_context(context: Any) -> None:
    kind = type(context)
    if hasattr(kind, "__enter__") and hasattr(kind, "__exit__"):
        return
    name = kind.__name__
    raise fault(
        TypeMismatch,
        f"`with` takes a pipeline or a context manager, got a {name}",
        help="`with pipeline(...) as (i, j):` runs a block for every index; "
        "`a, b = values` gives names to values",
    )


def not_(session: Session, value: Any) -> Any:
    """`not value`."""
    del session
    return branching.negated(value) if is_kernel(value) else not value


def _begin(session: Session, *names: FunctionType) -> bool:
    """Note where an operand begins, and what the names are that it may assign."""
    mentioned, assigned = [*names, None, None][:2]
    session.effects.append(effects_of(mentioned, assigned) if mentioned is not None else None)
    session.marks.append(session.trace.builder.mark())
    return True


def goes_on(session: Session, left: Any, *names: FunctionType) -> bool:
    """Whether the right operand of `and` is evaluated."""
    return _begin(session, *names) if is_kernel(left) else bool(left)


def stays_open(session: Session, left: Any, *names: FunctionType) -> bool:
    """Whether the right operand of `or` is evaluated."""
    return _begin(session, *names) if is_kernel(left) else not left


def both(session: Session, left: Any, right: Any) -> Any:
    """`left and right`, both evaluated."""
    if not is_kernel(left):
        return right
    return branching.both(left, session.marks.pop(), right, session.effects.pop())


def either(session: Session, left: Any, right: Any) -> Any:
    """`left or right`, both evaluated."""
    if not is_kernel(left):
        return right
    return branching.either(left, session.marks.pop(), right, session.effects.pop())


def choose(session: Session, condition: Any) -> Any:
    """Return the condition of a conditional expression: a kernel bool, or Python's answer."""
    del session
    return as_condition(condition) if is_kernel(condition) else bool(condition)


def then(session: Session, condition: Any, *names: FunctionType) -> bool:
    """Whether the first side of a conditional expression is evaluated."""
    return _begin(session, *names) if is_kernel(condition) else bool(condition)


def else_(session: Session, condition: Any) -> bool:
    """Whether the second side is evaluated; what the first one did becomes a region."""
    if is_kernel(condition):
        session.sides.append(_side(session))
        return True
    return not condition


def _side(session: Session) -> branching.Side:
    """Return what evaluating a side did, which is taken back."""
    effects = session.effects[-1]
    left = effects.taken_back() if effects is not None else {}
    return branching.Side(session.trace.builder.cut(session.marks[-1]), left)


def chosen(session: Session, condition: Any, first: Any, second: Any) -> Any:
    """Return the value of a conditional expression."""
    if not is_kernel(condition):
        return first if condition else second
    otherwise, effects = _side(session), session.effects.pop()
    session.marks.pop()
    return branching.choose(condition, session.sides.pop(), first, otherwise, second, effects)


def in_(session: Session, value: Any, container: Any) -> Any:
    """`value in container`: of kernel values, whether it equals one of the elements."""
    require_usable(container)
    parts = list(container) if type(container) in LISTED else []
    if not is_kernel(value) and not any(map(is_kernel, parts)):
        return value in container
    if method := users_method(type(container), "__contains__"):
        answer = call(session, method, container, value)
        return answer if is_kernel(answer) else bool(answer)
    if type(container) not in LISTED:
        raise fault(
            NotConstant,
            f"`in` asks whether a kernel value is in a {type(container).__name__}",
            help="it works on tuples, lists, sets and dicts of numbers",
        )
    found: Any = False
    for part in parts:
        found = as_condition(value == part) | found if found is not False else value == part
    return found


def assert_(session: Session, test: Any, message: Callable[[], object] | None = None) -> None:
    """`assert test, message`: of shapes, scalars and constants at every launch.

    Of kernel values in the message, an f-string, the failing block tells its own. One that fails
    already may stand under a condition that only the running kernel knows.
    """
    if is_kernel(test) or (not test and session.conditions):
        said = message() if message is not None else ""
        whole = [said if is_kernel(said) else str(said)]
        values, pieces = told(said.pieces if isinstance(said, Text) else whole)
        condition = as_condition(test if is_kernel(test) else False)
        emit(ops.Assert, condition=condition.value, values=values, pieces=pieces)
    elif not test:
        said = f": {message()}" if message is not None else ""
        raise fault(
            FailedAssertion,
            f"the kernel's assertion fails{said}",
            help="call it with constants and arguments for which the assertion holds",
        )


def raised(session: Session) -> None:
    """`raise`: whether it is reached must be known while tracing."""
    if session.conditions:
        raise fault(
            UnsupportedSyntax,
            "`raise` stands under a condition that only the running kernel knows",
            help="`assert condition, message` is checked when the kernel is launched",
        )


def refuse(session: Session, what: str) -> None:
    """Refuse syntax that has no meaning in a kernel."""
    del session
    way_out = REFUSED_HELP.get(what, "write it outside of the kernel")
    raise fault(UnsupportedSyntax, f"`{what}` is not supported in a kernel", help=way_out)


def deletable(session: Session, owner: Any) -> Any:
    """Return what `del` takes an element or an attribute from: an object of Python's."""
    del session
    if is_kernel_value(owner):
        raise fault(
            TypeMismatch,
            f"`del` takes nothing from {owner}"
            if is_kernel(owner)
            else "`del` takes no memory away",
            help="`del name` forgets a name; `t[1:]` is a tile without its first element",
        )
    return owner


class Guard:
    """The body of a `try`: it makes no kernel values, as none raises where the kernel runs."""

    __slots__ = ("_builder", "_mark")

    def __init__(self, session: Session) -> None:
        self._builder = session.trace.builder

    def __enter__(self) -> None:
        """Note what the kernel does before."""
        self._mark = self._builder.mark()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Refuse what was added, unless it is our report that leaves the body."""
        if self._builder.mark() != self._mark and not (kind and issubclass(kind, OURS)):
            raise fault(
                UnsupportedSyntax,
                "`try` around kernel values is not supported",
                help="nothing raises inside a running kernel: check with `assert` or `if`, and "
                "keep in the `try` what Python does while tracing",
            )


def passing(session: Session) -> tuple[type[BaseException], ...]:
    """Return what no `except` of the kernel's text catches."""
    del session
    return OURS


def text(session: Session, *pieces: Any) -> str:
    """Return an f-string of pieces, which `print` takes apart if some are kernel values."""
    del session
    return Text.of(pieces)


def matched(session: Session, subject: Any) -> Any:
    """Return the subject of a `match` on structure."""
    del session
    if is_kernel(subject):
        raise fault(
            NotConstant,
            "`match` on a kernel value takes constant patterns",
            (subject.value, "it comes from here"),
            help="`case 1:`, `case 2 | 3:` and `case _:` work, with guards; capture by assignment",
        )
    return subject


HOOKS: dict[str, Callable[..., Any]] = {
    "__assert__": assert_,
    "__both__": both,
    "__call__": call,
    "__choose__": choose,
    "__chosen__": chosen,
    "__either__": either,
    "__deletable__": deletable,
    "__else__": else_,
    "__for__": for_,
    "__goes_on__": goes_on,
    "__guarded__": Guard,
    "__if__": if_,
    "__in__": in_,
    "__matched__": matched,
    "__not__": not_,
    "__passing__": passing,
    "__raised__": raised,
    "__refuse__": refuse,
    "__stays_open__": stays_open,
    "__text__": text,
    "__then__": then,
    "__unless__": unless,
    "__while__": while_,
    "__with__": with_,
}
