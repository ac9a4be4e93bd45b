"""Who runs a kernel: its place in the grid, its warpgroup and warp, and their registers.

Invariant: the numbers here are weak integers, equal in every thread that runs the statement; those
of warps are so inside the `if` that they decide.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from astdsl.errors import BadPipeline, TypeMismatch, UnknownName, UnsupportedFeature, did_you_mean
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.lang.blocks import trace_branches
from astdsl.lang.branching import as_condition
from astdsl.lang.indices import atom_of, index_value, known_index, loop_index, weak_integer
from astdsl.lang.names import BlockFunction, BlockNames
from astdsl.lang.symbolic import Atom, Bounds, Form
from astdsl.lang.tracing import Grid, Trace, emit, fault, must_be_used, require_trace, used
from astdsl.lang.values import Literal, Tile, as_operand

WARPS = 4
# More multiprocessors than any device has.
_MOST = 1 << 12
LEAST_REGISTERS, MOST_REGISTERS, REGISTER_STEP = 24, 256, 8
ACTIONS = ("increase", "decrease")
# Axes that are not the grid's.
WARPGROUP_AXIS, WARP_AXIS = "wg", "warp"


def warpgroup_id() -> Tile:
    """Return the number of the warpgroup that runs this, from 0, in `@kernel(warpgroups=n)`.

    A warpgroup is 128 CUDA threads. Errors: UnsupportedFeature.
    """
    trace = _require_warpgroups("warpgroup_id")
    return _same_everywhere(ops.WarpgroupId, (0, trace.warpgroups - 1))


def warp_id() -> Tile:
    """Return the number of the warp in its warpgroup, 0 to 3, in `@kernel(warpgroups=n)`.

    It decides an `if`, whose body one warp runs by itself: scalars and asynchronous operations.
    Neighbouring ones are run side by side, and the warps meet at their end.
    Errors: UnsupportedFeature; WarpContext where it is used otherwise.
    """
    _require_warpgroups("warp_id")
    return _number(emit(ops.WarpId).result, WARPS)


def _require_warpgroups(function: str) -> Trace:
    trace = require_trace(f"`{function}`")
    if not trace.warpgroups:
        raise fault(
            UnsupportedFeature,
            f"`{function}()` tells apart who runs a kernel, and this one is run once by its block",
            help="`@kernel(warpgroups=2)` is run by each of two warpgroups",
        )
    return trace


def _same_everywhere(kind: type[ops.WarpgroupId | ops.Multiprocessors], bounds: Bounds) -> Tile:
    """Return a number that is the same wherever it is asked for: windows at it are known as one."""

    def rebuild() -> Value:
        return emit(kind).result

    form = Form.unknown(atom_of(kind, lambda n: Atom(n, None, bounds, rebuild=rebuild)))
    return known_index(form, lambda: weak_integer(index_value(form), form))


def _number(value: Any, count: int) -> Tile:
    return loop_index(value, Literal(0), Literal(count), Literal(1))


def program_id(axis: object) -> Any:
    """Return the number of this step along an axis of the outermost `parallel`, from 0.

    `axis` counts the axes from 0. Errors: BadPipeline.
    """
    grid = _require_grid("program_id")
    number = _axis_number("program_id", grid, axis)
    low, _, step = (_plain(x) for x in grid.bounds[number])
    index = grid.indices[number]
    if isinstance(low, int) and isinstance(step, int) and (low, step) == (0, 1):
        return index
    return (index - low) // step


def num_programs(axis: object) -> Any:
    """Return the number of steps along an axis of the outermost `parallel`.

    `axis` counts the axes from 0. Errors: BadPipeline.
    """
    grid = _require_grid("num_programs")
    low, high, step = (_plain(x) for x in grid.bounds[_axis_number("num_programs", grid, axis)])
    if isinstance(low, int) and isinstance(step, int):
        if (low, step) == (0, 1):
            return high
        if isinstance(high, int):
            return len(range(low, high, step))
    return -((low - high) // step)


def num_sms() -> Tile:
    """Return the number of multiprocessors of the target: 132 for sm_90a, 148 for sm_100a.

    `parallel(num_sms(), names=("sm",))` is a grid of one block for each, the persistent blocks of
    `nd_loop(grid, collective_axes="sm")`. A device of the target may have fewer: then some blocks
    run after others.
    """
    return _same_everywhere(ops.Multiprocessors, (1, _MOST))


def axis_index(name: object) -> Any:
    """Return where this runs along a named axis: of `parallel(names=)`, "wg" or "warp".

    Errors: UnknownName, BadPipeline.
    """
    if name == WARPGROUP_AXIS:
        return warpgroup_id()
    if name == WARP_AXIS:
        return warp_id()
    return program_id(_named_axis("axis_index", name))


def axis_size(name: object) -> Any:
    """Return the extent of a named axis: of `parallel(names=)`, "wg" or "warp".

    Errors: UnknownName, BadPipeline.
    """
    if name == WARPGROUP_AXIS:
        return _require_warpgroups("axis_size").warpgroups
    if name == WARP_AXIS:
        return WARPS
    return num_programs(_named_axis("axis_size", name))


def _require_grid(function: str) -> Grid:
    grid = require_trace(f"`{function}`").grid
    if grid is None:
        raise fault(
            BadPipeline,
            f"`{function}` stands outside of a grid",
            help='`with parallel(cdiv(M, bm), names=("m",)) as i:` is a grid',
        )
    return grid


def _axis_number(function: str, grid: Grid, axis: object) -> int:
    rank = len(grid.indices)
    if type(axis) is not int or not 0 <= axis < rank:
        raise fault(
            BadPipeline,
            f"`{function}` takes the number of an axis, from 0 to {rank - 1}, got {axis!r}",
            help='`axis_index("m")` goes by the names that `parallel` gives',
        )
    return axis


def _named_axis(function: str, name: object) -> int:
    grid = _require_grid(function)
    if name not in grid.names:
        known = (*grid.names, WARPGROUP_AXIS, WARP_AXIS)
        raise fault(
            UnknownName,
            f"`{function}` knows no axis {name!r}",
            help=did_you_mean(str(name), known) or f"the axes are {', '.join(known)}",
        )
    return grid.names.index(str(name))


def _plain(x: Any) -> Any:
    return x.number if isinstance(x, Literal) else x


def set_max_registers(n: object, action: object) -> None:
    """Let each thread of this warpgroup have `n` registers; `action` "increase" or "decrease".

    `n` is a multiple of 8 from 24 to 256; what the warpgroups of a block have in the end must fit
    its 65,536 registers. An increase waits until others have decreased theirs.
    PTX: setmaxnreg. Errors: TypeMismatch, UnsupportedFeature.
    """
    _require_warpgroups("set_max_registers")
    count = as_operand(n, "`n`")
    number = count.number if isinstance(count, Literal) else 0
    if number not in range(LEAST_REGISTERS, MOST_REGISTERS + 1, REGISTER_STEP):
        raise fault(
            TypeMismatch,
            f"`set_max_registers` takes a multiple of {REGISTER_STEP} from {LEAST_REGISTERS} to "
            f"{MOST_REGISTERS}, got {n}",
            help="24 and 40 are usual for a warpgroup that copies, 232 for one that computes",
        )
    if not isinstance(action, str) or action not in ACTIONS:
        raise fault(
            TypeMismatch,
            f"`action` of `set_max_registers` is one of {', '.join(ACTIONS)}, got {action!r}",
            help=did_you_mean(str(action), ACTIONS) or "say whether `n` is more than before",
        )
    emit(ops.SetMaxRegisters, count=number, increase=action == "increase")


def when(condition: object) -> Callable[[Callable[[], Any]], None]:
    """Run the function that this decorates where `condition` holds, once and at once.

    `@when(i == 0)` over `def _(): ...` is `if i == 0: ...`, for ported code. Errors: TypeMismatch.
    """
    held = condition if isinstance(condition, bool) else as_condition(condition)

    def decorate(function: Callable[[], Any]) -> None:
        used(decorate)
        if not isinstance(function, FunctionType) or function.__code__.co_argcount:
            raise fault(
                TypeMismatch,
                f"`when` decorates a function without parameters, got {function!r}",
                help="write `@when(condition)` over `def _():`",
            )
        if held is True:
            function()
        elif held is not False:
            trace_branches(held, _as_block(function), None)

    must_be_used(
        decorate,
        "no function is below this `when`, so nothing runs under its condition",
        "write `@when(condition)` over `def _():`, or `if condition:` over the statements",
    )
    return decorate


def _as_block(function: FunctionType) -> BlockFunction:
    shared = function.__code__.co_freevars
    here = require_trace("`when`").locate()
    names = BlockNames(bound=shared, read=shared, exposed=frozenset(), after=frozenset(shared),
                       span=here)  # fmt: skip
    return BlockFunction(function, names)
