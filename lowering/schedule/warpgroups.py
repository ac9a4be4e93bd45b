"""What is checked of programs that every warpgroup of a block runs for itself.

Invariant: only what is proved is refused: what values of the running kernel decide is left to the
reference and the emulator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from astdsl.errors import ParallelConflict, ProtocolError, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.rewrite import Emit, replace_fields, rewrite_block
from astdsl.ir.types import GMEM
from astdsl.lowering.schedule.reach import Reach, reach
from astdsl.lowering.target import TCGEN05, Target

_REGISTER_STEP = 8
_Store = ops.Store | ops.CopyOut


def check_warpgroups(launch: ops.Launch, target: Target) -> None:
    """Refuse windows that two warpgroups store, and registers that the block has not.

    Errors: ParallelConflict, ProtocolError, TypeMismatch.
    """
    each = [reach(launch.body, k) for k in range(launch.warpgroups)]
    for one, other in combinations(each, 2):
        _require_own_windows(one, other)
    _require_registers(each, target)


def keep_apart(launch: ops.Launch, made: Iterable[Value], target: Target) -> ops.Launch:
    """Return the launch with an allocation of its own for each warpgroup, where several need one.

    `made` are the allocations that the schedule added: each pipeline is run by who enters it.
    Accumulators in registers are apart already.
    """
    placed: tuple[type[Op], ...] = (ops.AllocSmem, ops.AllocBarrier)
    if target.has(TCGEN05):
        placed = (*placed, ops.AllocAccumulator)
    users: dict[Value, set[int]] = {value: set() for value in made}
    for found in (reach(launch.body, k) for k in range(launch.warpgroups)):
        for value in (v for op in found.ops for v in op.operands if v in users):
            users[value].add(found.warpgroup)
    shared = {value: tuple(sorted(by)) for value, by in users.items() if len(by) > 1}

    def own(op: Op, emit: Emit) -> tuple[Value, ...] | None:
        if not isinstance(op, placed) or op.results[0] not in shared:
            return None
        made = replace_fields(op, owners=shared[op.results[0]])
        emit(made)
        return made.results

    return replace_fields(launch, body=rewrite_block(launch.body, own))


def _require_own_windows(one: Reach, other: Reach) -> None:
    for store in _certain_stores(one):
        if store in other.certain and _is_same_window(store, one, other):
            raise ParallelConflict(
                f"warpgroups {one.warpgroup} and {other.warpgroup} store the same window",
                (store.span, "stored by both"),
                help="`if warpgroup_id() == 0:` lets one of them store; or let the window depend "
                "on `warpgroup_id()`",
            )


def _certain_stores(found: Reach) -> Iterator[_Store]:
    for op in found.ops:
        if isinstance(op, _Store) and op.ref.ref.space == GMEM and op in found.certain:
            yield op


def _is_same_window(store: _Store, one: Reach, other: Reach) -> bool:
    def is_same(value: Value) -> bool:
        if value not in one.differing:
            return True
        return value in one.known and one.known[value] == other.known.get(value)

    return all(map(is_same, (*store.starts, *getattr(store, "predicate", ()))))


def _require_registers(each: list[Reach], target: Target) -> None:
    """Refuse counts that go the wrong way, and those whose sum a block does not have."""
    threads = target.threads_per_warpgroup
    share = target.registers_per_multiprocessor // (threads * len(each))
    first = min(share, target.registers_per_thread + 1) // _REGISTER_STEP * _REGISTER_STEP
    changes = [[op for op in x.ops if isinstance(op, ops.SetMaxRegisters)] for x in each]
    for asked in changes:
        _require_direction(asked, first)
    held = [asked[-1].count if asked else first for asked in changes]
    if sum(held) * threads > target.registers_per_multiprocessor:
        places = {op.span: f"{op.count} registers" for asked in changes for op in asked[-1:]}
        raise ProtocolError(
            f"the warpgroups want {' + '.join(map(str, held))} registers a thread, and a block has "
            f"{target.registers_per_multiprocessor // threads} for its warpgroups together",
            *places.items(),
            help="an increase would wait for ever: give less to one, or decrease another first",
        )


def _require_direction(asked: list[ops.SetMaxRegisters], first: int) -> None:
    now = first
    for op in asked:
        is_wrong = op.count < now if op.increase else op.count > now
        if is_wrong:
            word = "increase" if op.increase else "decrease"
            raise TypeMismatch(
                f"`set_max_registers({op.count}, action={word!r})` where a thread has {now}",
                (op.span, ""),
                help=f"a warpgroup of a block of this size begins with {first} a thread",
            )
        now = op.count
