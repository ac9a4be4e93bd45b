"""Warpgroup matrix products of sm_90a (PTX ISA 9.7.15).

Invariant: three rules are enforced: registers in flight are not touched, `wgmma.fence` comes
between an ordinary access of a register and its use by a product, operands in shared memory are
fenced before and left alone until the product is done.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from astdsl.emulator.convergence import (
    Gathering,
    Warpgroup,
    together,
    warpgroups,
    warps_of,
)
from astdsl.emulator.formats.descriptors import OperandShape, decode_wgmma_descriptor
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.groups import GroupLedger
from astdsl.emulator.isa import Control, controls
from astdsl.emulator.lanes import WARPGROUP_THREADS, WARPGROUP_WARPS
from astdsl.emulator.matrix import ELEMENT_BYTES, INTEGERS
from astdsl.emulator.products import M_ROWS, Product, ProductKind, Step, a_from_registers
from astdsl.emulator.scalars import all_of, any_of, one_a_lane
from astdsl.emulator.syntax import Immediate, Vector
from astdsl.emulator.tiles import SharedTile, locate
from astdsl.emulator.touches import Touches
from astdsl.emulator.undefined import mark, require_defined

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array

T = TypeVar("T")
_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_K_BYTES = 32
_PAIRS = {
    "f16": {"f16"}, "bf16": {"bf16"}, "tf32": {"tf32"}, "e4m3": {"e4m3", "e5m2"},
    "e5m2": {"e4m3", "e5m2"}, "s8": {"s8", "u8"}, "u8": {"s8", "u8"},
}  # fmt: skip
_RESULTS = {
    "f16": {"f16", "f32"}, "bf16": {"f32"}, "tf32": {"f32"}, "e4m3": {"f16", "f32"},
    "e5m2": {"f16", "f32"}, "s8": {"s32"}, "u8": {"s32"},
}  # fmt: skip


class _State:
    """The groups of products of every warp, and who has executed `wgmma.fence`."""

    def __init__(self, m: Machine) -> None:
        self.n_warps = m.n_warps
        self.ledger: GroupLedger[Product] = GroupLedger(m.n_blocks * self.n_warps)
        self.fenced = np.zeros(m.n_blocks * self.n_warps, np.bool_)
        self.open: dict[int, Product] = {}
        self.pending: list[Product] = []
        # By the first and the number of neighbouring lanes.
        self._warps: dict[tuple[int, int], Array] = {}
        self._groups: dict[tuple[int, int], list[Warpgroup]] = {}
        self._owners: dict[Warpgroup, Array] = {}

    def warps(self, m: Machine, lanes: Lanes) -> Array:
        """Return the numbers of the warps that lanes belong to, over all blocks."""
        return _kept(self._warps, lanes, lambda: self._numbers(m, lanes))

    def groups(self, m: Machine, lanes: Lanes) -> list[Warpgroup]:
        """Return the warpgroups that lanes are."""
        return _kept(self._groups, lanes, lambda: warpgroups(m, lanes))

    def owners(self, group: Warpgroup) -> Array:
        """Return the numbers of a warpgroup's warps."""
        found = self._owners.get(group)
        if found is None:
            first = group.rows[:, None] * self.n_warps + group.number * WARPGROUP_WARPS
            found = (first + np.arange(WARPGROUP_WARPS)).reshape(-1)
            if group.lanes.contiguous:
                self._owners[group] = found
        return found

    def _numbers(self, m: Machine, lanes: Lanes) -> Array:
        rows, numbers = warps_of(m, lanes)
        warps: Array = rows * self.n_warps + numbers
        return warps


def _kept(known: dict[tuple[int, int], T], lanes: Lanes, make: Callable[[], T]) -> T:
    """Return what is made of lanes, once for the same neighbouring ones."""
    if not lanes.contiguous:
        return make()
    key = int(cast(slice, lanes.sel).start), lanes.n
    found = known.get(key)
    if found is None:
        found = known[key] = make()
    return found


@controls("wgmma.fence")
def prepare_fence(ops: Operands) -> Control:
    """`wgmma.fence.sync.aligned`: orders register accesses before the products after it."""
    ops.allow("fence", "sync", "aligned")

    def execute(m: Machine, lanes: Lanes) -> None:
        state = m.state(_State)
        warps = state.warps(m, lanes)
        state.fenced[warps] = True
        m.state(Touches).fence(warps)

    return together(execute)


@controls("wgmma.commit_group")
def prepare_commit(ops: Operands) -> Control:
    """`wgmma.commit_group.sync.aligned`: close each warp's open group."""
    ops.allow("commit_group", "sync", "aligned")

    def execute(m: Machine, lanes: Lanes) -> None:
        state = m.state(_State)
        state.ledger.commit(state.warps(m, lanes))
        state.open.clear()

    return together(execute)


@controls("wgmma.wait_group")
def prepare_wait(ops: Operands) -> Control:
    """`wgmma.wait_group.sync.aligned N`: at most N groups stay in flight."""
    ops.allow("wait_group", "sync", "aligned")
    if not isinstance(ops.args[0], Immediate):
        raise ops.refuse("the number of groups must be a constant")
    keep = ops.args[0].value

    def execute(m: Machine, lanes: Lanes) -> None:
        state = m.state(_State)
        for product, mine in state.ledger.due(state.warps(m, lanes), keep):
            product.wait(mine)
        state.pending = [product for product in state.pending if not product.is_over]
        if m.guard is not None:
            m.guard.clocks.know_async(lanes)

    return together(execute)


class _Instruction:
    """The operands of one `wgmma.mma_async`, resolved."""

    def __init__(self, ops: Operands) -> None:
        self.kind = _kind(ops)
        d, a, b = ops.args[0], ops.args[1], ops.args[2]
        elements = d.elements if isinstance(d, Vector) else (d,)
        self.d = tuple(ops.place(e) for e in elements)
        wanted = self.kind.n // (2 * self.kind.d_parts)
        if len(self.d) != wanted:
            raise ops.refuse(f"D of m64n{self.kind.n} has {wanted} registers, not {len(self.d)}")
        self.a_registers = tuple(ops.place(e) for e in a.elements) if isinstance(a, Vector) else ()
        if isinstance(a, Vector) and len(a.elements) != 4:
            raise ops.refuse("A in registers has four of them")
        self.a = None if self.a_registers else ops.source(a, "b64")
        self.b = ops.source(b, "b64")
        self.keeps = ops.source(ops.args[3], "pred")
        ops.sensitive += ops.reads
        ops.holds += [*self.d, *self.a_registers]
        self.places = _places(frozenset(ops.holds))
        self.transposes = _transposes(ops, bool(self.a_registers))
        k, size = self.kind.k, ELEMENT_BYTES[self.kind.a_type]
        self.a_shape = OperandShape(M_ROWS, k, size, self.transposes[0])
        self.b_shape = OperandShape(self.kind.n, k, size, self.transposes[1])

    def execute(self, m: Machine, lanes: Lanes) -> None:
        """Issue the product of every warpgroup."""
        for group in m.state(_State).groups(m, lanes):
            self._issue(m, group)

    def _issue(self, m: Machine, group: Warpgroup) -> None:
        state, first = m.state(_State), group.lanes.index[: len(group.rows)]
        keeps = one_a_lane(self.keeps(m, group.lanes), group.lanes.n)[: len(group.rows)]
        self._check(m, state, group, keeps)
        if m.guard is not None:
            m.guard.join(group.lanes)
        try:
            step = self._step(m, group)
        except FormatError as error:
            raise m.fault("E280", str(error), int(first[0])) from None
        product = state.open.get(group.number)
        if product is not None and self._continues(product, group, keeps):
            product.add(step, self.places)
            return
        product = Product(m, group, self.kind, self.d, self.a_registers, keeps.copy())
        product.add(step, self.places)
        state.ledger.issue(product, state.owners(group))
        state.pending.append(product)
        state.open[group.number] = product
        m.asynchronous.hold(product.operation)

    def _continues(self, product: Product, group: Warpgroup, keeps: Array) -> bool:
        """Say whether this instruction only lengthens the K of a product of its group."""
        return (
            not product.done
            and product.kind == self.kind
            and product.d_places == self.d
            and bool(product.a_places) == bool(self.a_registers)
            and self._same_layout(product)
            and all_of(keeps)
            and (product.group is group or np.array_equal(product.group.rows, group.rows))
        )

    def _same_layout(self, product: Product) -> bool:
        last = product.steps[-1]
        same_a = not isinstance(last.a, SharedTile) or last.a.mn_major == self.transposes[0]
        return same_a and last.b.mn_major == self.transposes[1]

    def _step(self, m: Machine, group: Warpgroup) -> Step:
        n = len(group.rows)
        b = _first(self.b, m, group.lanes, n)
        tile = locate(m, b, decode_wgmma_descriptor, self.b_shape)
        if self.a is None:
            return Step(a_from_registers(m, group, self.a_registers), tile)
        a = _first(self.a, m, group.lanes, n)
        return Step(locate(m, a, decode_wgmma_descriptor, self.a_shape), tile)

    def _check(self, m: Machine, state: _State, group: Warpgroup, keeps: Array) -> None:
        lane = int(group.lanes.index[0])
        owners = state.owners(group)
        fenced = all_of(state.fenced[owners])
        reads = (m.launch.fences.accumulators and any_of(keeps)) or not fenced
        touched = m.state(Touches).before(m.pc, owners, reads=reads)
        if touched is not None or not fenced:
            where = "" if touched is None else f" ({m.lane_text(lane)}, {m.place_text(touched)})"
            raise m.fault(
                "E261", "a product without wgmma.fence after the last ordinary access of its "
                f"registers{where}", lane,
                help="execute `wgmma.fence.sync.aligned` before the products",
            )  # fmt: skip
        for other in state.pending:
            if _collides(other, self, group):
                raise m.fault(
                    "E263", f"registers of the {other.operation.what} "
                    f"({other.operation.issue.text(m, int(group.rows[0]))}) are used while it is "
                    "in flight", lane,
                    help="wait for it with `wgmma.wait_group`",
                )  # fmt: skip
        if m.undefined:
            require_defined(m, group.lanes, self.a_registers, "an operand of wgmma")
            self._check_accumulator(m, group.lanes, np.tile(keeps, WARPGROUP_THREADS))

    def _check_accumulator(self, m: Machine, lanes: Lanes, keeps: Array) -> None:
        """Fault if an undefined accumulator is added to; the others are written from here on."""
        if any_of(keeps):
            require_defined(m, lanes.where(keeps), self.d, "an accumulator of wgmma")
        if not all_of(keeps):
            fresh = lanes.where(~keeps)
            for place in self.d:
                mark(m, place, fresh, None)


@lru_cache(maxsize=1024)
def _places(places: frozenset[Place]) -> frozenset[Place]:
    """Return one object for equal sets, so that comparing them is cheap."""
    return places


def _collides(other: Product, mine: _Instruction, group: Warpgroup) -> bool:
    """Say whether two products in flight share registers in a way that is undefined."""
    if other.group.number != group.number:
        return False
    d, a = other.d_set, other.a_set
    if not d.isdisjoint(mine.a_registers) or not a.isdisjoint(mine.d):
        return True
    chained = other.d_places == mine.d and other.kind.n == mine.kind.n
    return not d.isdisjoint(mine.d) and not chained


def _first(get: Getter, m: Machine, lanes: Lanes, n: int) -> Array:
    """Return a warpgroup-uniform value, one for each block, from the first thread."""
    return one_a_lane(get(m, lanes), lanes.n)[:n]


def _kind(ops: Operands) -> ProductKind:
    ops.allow("mma_async", "sync", "aligned", "satfinite", *_RESULTS, *ops.modifiers[3:4])
    shape = _SHAPE.fullmatch(ops.modifiers[3]) if len(ops.modifiers) > 6 else None
    if shape is None:
        raise ops.refuse("the shape is .m64nNkK, followed by the types of D, A and B")
    n, k = int(shape[1]), int(shape[2])
    d_type, a_type, b_type = ops.modifiers[4:7]
    if b_type not in _PAIRS.get(a_type, ()) or d_type not in _RESULTS[a_type]:
        raise ops.refuse(f"there is no product of .{a_type} and .{b_type} into .{d_type}")
    if n % 8 or not 8 <= n <= 256 or k * ELEMENT_BYTES[a_type] != _K_BYTES:
        raise ops.refuse(f"there is no shape .m64n{n}k{k} of .{a_type}")
    scales = _constants(ops, ops.args[4:6]) if a_type not in INTEGERS else [1, 1]
    if any(scale not in (1, -1) for scale in scales):
        raise ops.refuse("the scales of A and B are 1 or -1")
    return ProductKind(n, k, d_type, a_type, b_type, scales[0] * scales[1], ops.has("satfinite"))


def _constants(ops: Operands, operands: Sequence[Any]) -> list[int]:
    values = []
    for operand in operands:
        if not isinstance(operand, Immediate):
            raise ops.refuse("scales and transposes are constants")
        values.append(operand.value)
    return values


def _transposes(ops: Operands, in_registers: bool) -> tuple[bool, bool]:
    """Return whether A and B are MN-major; only 16-bit types say so."""
    flags = _constants(ops, ops.args[6:])
    if not flags:
        return False, False
    if len(flags) != (1 if in_registers else 2):
        raise ops.refuse("two transposes follow the scales, one if A is in registers")
    return (False, bool(flags[0])) if in_registers else (bool(flags[0]), bool(flags[1]))


@controls("wgmma.mma_async")
def prepare_product(ops: Operands) -> Control:
    """`wgmma.mma_async.sync.aligned.m64nNkK.D.A.B d, a, b, scale-d{, scales}{, transposes}`."""
    return together(_Instruction(ops).execute, Gathering(WARPGROUP_THREADS))
