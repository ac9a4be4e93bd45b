"""Roots: the memory that refs are views of.

Invariant: extents count elements; equal names are equal extents.
"""

from __future__ import annotations

from typing import Any

from astdsl.errors import NotConstant, UnsupportedFeature, WrittenInput
from astdsl.ir import ops
from astdsl.ir.core import IN, Value
from astdsl.ir.dtypes import DType, f4e2m1
from astdsl.ir.transforms import Transform
from astdsl.ir.types import TMEM
from astdsl.lang import nibbles
from astdsl.lang.indices import atom_of, index_value
from astdsl.lang.staging import Staging
from astdsl.lang.symbolic import Atom, Form
from astdsl.lang.tracing import DimKey, emit, fault
from astdsl.lang.views import AxisView
from astdsl.records import dataclass

INT32_LIMIT, INT64_LIMIT = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """Memory that refs are views of. `dims` name its axes; equal names are equal extents.

    `extents` are the extents of memory that the kernel allocates, `transforms` what it states of
    the physical layout of shared memory. `packed` memory holds two f4e2m1 to a byte along its last
    axis: its `value` is bytes, whereas extents and windows count elements. `staging` is what a
    `BlockSpec` states of copies of its blocks.
    """

    value: Value
    name: str
    role: str
    dims: tuple[str | None, ...]
    extents: tuple[Form, ...] = ()
    transforms: tuple[Transform, ...] = ()
    packed: bool = False
    staging: Staging | None = None

    @property
    def dtype(self) -> DType:
        """The element type."""
        return f4e2m1 if self.packed else self.value.ref.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The extents in elements, None for those of run time."""
        shape = self.value.ref.shape
        if not self.packed:
            return shape
        return (*shape[:-1], None if shape[-1] is None else shape[-1] * nibbles.PER_BYTE)

    def require_addressable(self) -> None:
        """Refuse to read or write tensor memory as if it had addresses."""
        if self.value.ref.space == TMEM:
            raise fault(
                UnsupportedFeature,
                f"`{self.name}` is tensor memory, which is not indexed",
                (self.value, "allocated here"),
                help="`async_load_tmem(ref)` reads it, `async_store_tmem(ref, tile)` writes it",
            )

    def require_writable(self) -> None:
        """Refuse to write an input."""
        if self.role == IN:
            raise fault(
                WrittenInput,
                f"`{self.name}` is an `In` parameter, which is only read",
                (self.value, "it is declared here"),
                help="annotate it as `InOut[...]` to change it in place, or write an `Out`",
            )

    def extent(self, axis: int) -> Form:
        """Return the extent of an axis as a form."""
        if self.extents:
            return self.extents[axis]
        static = self.shape[axis]
        return Form.unknown(self._atom(axis)) if static is None else Form.of(static)

    def wanted(self, axis: int) -> frozenset[DimKey]:
        """Return the dims that must be constant for this axis to be."""
        wanted = self.extent(axis).dims
        if wanted is None:
            raise fault(
                NotConstant,
                f"axis {axis} of `{self.name}` has an extent that is known only at run time",
                (self.value, "it is allocated here"),
                help=f"take windows of it: `{self.name.lower()}[tile(i, 64)]`",
            )
        return wanted

    def _atom(self, axis: int) -> Atom:
        value = self.value
        limit = INT32_LIMIT if value.ref.small else INT64_LIMIT

        def rebuild() -> Value:
            if self._is_packed(axis):
                return index_value(self._bytes(axis).scaled(nibbles.PER_BYTE))
            return emit(ops.Dim, ref=value, axis=axis).result

        key = ("dim", self.dims[axis] or (self.name, axis))
        atom = atom_of(key, lambda number: Atom(number, None, (0, limit), frozenset(), rebuild))
        assert atom.dims is not None, "a dim is computed from dims"
        atom.dims |= {(self.name, axis)}
        return atom

    def _is_packed(self, axis: int) -> bool:
        return self.packed and axis == self.value.ref.rank - 1

    def _bytes(self, axis: int) -> Form:
        """Return the extent of the packed axis in bytes."""
        value = self.value

        def rebuild() -> Value:
            return emit(ops.Dim, ref=value, axis=axis).result

        key, bounds = ("bytes", self.name), (0, INT64_LIMIT // nibbles.PER_BYTE)
        return Form.unknown(
            atom_of(key, lambda number: Atom(number, None, bounds, frozenset(), rebuild))
        )

    def bytes_of_window(self, fields: dict[str, Any], axis: AxisView) -> dict[str, Any]:
        """Return the fields of a window as those of the bytes that hold it."""
        last = self.value.ref.rank - 1
        is_known = self.extents or self.shape[last] is not None
        halves = {} if is_known else {self._atom(last): self._bytes(last)}
        return nibbles.bytes_of_window(fields, axis, halves, self.name)
