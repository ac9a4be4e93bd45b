"""Nodes of the IR: values, blocks, operations, modules.

Invariant: nodes are immutable and compared by identity. A field's annotation is its role: `Value`
or `tuple[Value, ...]` an operand, `Block` or `tuple[Block, ...]` a region, anything else an
attribute. Walking, cloning, printing and renaming read these roles and know no operation by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, Self, dataclass_transform

from astdsl.ir.types import RefType, TileType, Type
from astdsl.source import Span

OPERAND, REGION, ATTRIBUTE = "operand", "region", "attribute"
_ROLES = {
    "Value": OPERAND,
    "tuple[Value, ...]": OPERAND,
    "Block": REGION,
    "tuple[Block, ...]": REGION,
}
# What an operation does beside giving its results: nothing, reads or writes memory, or acts on
# barriers and asynchronous work, which keeps its place among everything that touches memory.
PURE, READS, WRITES, ACTS = "pure", "reads", "writes", "acts"


class Value:
    """One result of an operation, or one argument of a block. `hint` names it in print."""

    __slots__ = ("hint", "type")

    def __init__(self, type: Type, hint: str = "") -> None:
        self.type = type
        self.hint = hint

    @property
    def tile(self) -> TileType:
        """The type, of a value known to be a tile."""
        assert isinstance(self.type, TileType), f"expected a tile, got {self.type}"
        return self.type

    @property
    def ref(self) -> RefType:
        """The type, of a value known to be a ref."""
        assert isinstance(self.type, RefType), f"expected a ref, got {self.type}"
        return self.type

    def __repr__(self) -> str:
        return f"<{self.hint or 'value'}: {self.type}>"


def _flat(names: tuple[str, ...], many: frozenset[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the values of some fields as one tuple, those in tuples among them."""
    if not names:
        return lambda _node: ()
    if many.isdisjoint(names):
        values = attrgetter(*names)
        return values if len(names) > 1 else lambda node: (values(node),)
    if len(names) == 1:
        return attrgetter(*names)

    def flat(node: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = ()
        for name in names:
            value = getattr(node, name)
            found += value if name in many else (value,)
        return found

    return flat


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
class Node:
    """A frozen, keyword-only node with identity equality.

    A subclass gives its fields as annotations. It is no dataclass, and has no class of classes:
    programs are made, and asked what they are, all the time, and both are slower there.
    """

    fields: ClassVar[dict[str, str]] = {}
    """The role of each field."""
    by_role: ClassVar[dict[str, tuple[str, ...]]]
    many: ClassVar[frozenset[str]] = frozenset()
    """The operands and regions that are tuples."""
    operands_of: ClassVar[Callable[[Any], tuple[Any, ...]]]
    regions_of: ClassVar[Callable[[Any], tuple[Any, ...]]]
    defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {k: v for k, v in cls.__annotations__.items() if "ClassVar" not in v}
        cls.fields = cls.fields | {k: _ROLES.get(v, ATTRIBUTE) for k, v in own.items()}
        cls.defaults = cls.defaults | {k: vars(cls)[k] for k in own if k in vars(cls)}
        cls.by_role = {
            role: tuple(k for k, v in cls.fields.items() if v == role)
            for role in (OPERAND, REGION, ATTRIBUTE)
        }
        cls.many |= {k for k, v in own.items() if v in _ROLES and v.startswith("tuple")}
        cls.operands_of = staticmethod(_flat(cls.by_role[OPERAND], cls.many))
        cls.regions_of = staticmethod(_flat(cls.by_role[REGION], cls.many))

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        given = values if len(values) == len(cls.fields) else cls.defaults | values
        if given.keys() != cls.fields.keys():
            wrong = sorted(given.keys() ^ cls.fields.keys())
            raise AssertionError(f"{cls.__name__}: missing or unknown fields {', '.join(wrong)}")
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{type(self).__name__} is immutable: cannot set {name}")

    def values_of(self, role: str) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of the fields with a role, in order of declaration."""
        for name in type(self).by_role[role]:
            yield name, getattr(self, name)


class Block(Node):
    """A straight run of operations with arguments; the last one is its terminator, if any."""

    args: tuple[Value, ...] = ()
    ops: tuple[Op, ...] = ()

    @cached_property
    def walked(self) -> tuple[Op, ...]:
        """What `walk` returns."""
        found: list[Op] = []
        for op in self.ops:
            found.append(op)
            for region in op.regions:
                found += region.walked
        return tuple(found)

    @cached_property
    def definitions(self) -> Mapping[Value, Op]:
        """The operation that makes each result in the block and the regions inside it."""
        return {value: op for op in self.walked for value in op.results}


class Op(Node):
    """An operation. A subclass declares fields, `effect`, and its results' types."""

    span: Span
    effect: ClassVar[str] = PURE
    # Whether regions use nothing that is made outside of them.
    isolated: ClassVar[bool] = False
    # Every operand and every region, in order of the fields, and the results; made once, because
    # whoever walks a program asks for them all the time.
    operands: ClassVar[tuple[Value, ...]]
    regions: ClassVar[tuple[Block, ...]] = ()
    results: ClassVar[tuple[Value, ...]]
    # Whether `verify` has been asked already: nothing changes what it says.
    is_sound: ClassVar[bool]

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._complete()

    def _complete(self) -> None:
        cls, own = type(self), self.__dict__
        own["is_sound"] = False
        own["operands"] = cls.operands_of(self)
        if cls.by_role[REGION]:
            own["regions"] = cls.regions_of(self)
        hint = self.result_hint()
        own["results"] = tuple([Value(t, hint) for t in self.result_types()])

    def remade(self, changes: dict[str, Any]) -> Self:
        """Return an operation with some fields changed, and new results with the old hints."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__, **changes)
        new._complete()
        for old, made in zip(self.results, new.results, strict=False):
            made.hint = old.hint
        return new

    def result_types(self) -> tuple[Type, ...]:
        """Return the types of the results, from the fields."""
        return ()

    def result_hint(self) -> str:
        """Return the name of the result in print, where nobody gives one."""
        return ""

    @classmethod
    def implied(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes that follow from other fields if not stated; print leaves them out."""
        del fields
        return {}

    def verify(self) -> None:
        """Raise an AssertionError that says what is malformed."""

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def attributes(self) -> dict[str, Any]:
        """The fields that are neither operands nor regions, the span left out."""
        return {k: v for k, v in self.values_of(ATTRIBUTE) if k != "span"}


IN, OUT, INOUT, SCALAR, SCRATCH = "in", "out", "inout", "scalar", "scratch"


class Param(Node):
    """A parameter of a kernel: its value, name, role, and for an output what it starts with."""

    value: Value
    name: str
    role: str
    span: Span
    initial: float | int | bool | None = None


class Module(Node):
    """A kernel: parameters and body, with the constants that it was specialised to.

    `constants` are (name, text) pairs, for print and for the key on disk only. With `warpgroups`
    the body is run by each of so many warpgroups of a block; with 0, once by the block.
    `approx_math` allows approximate instructions.
    """

    name: str
    params: tuple[Param, ...]
    body: Block
    span: Span
    target: str = ""
    constants: tuple[tuple[str, str], ...] = ()
    warpgroups: int = 0
    approx_math: bool = False


def walk(block: Block) -> tuple[Op, ...]:
    """Return every operation of a block and of the regions inside it, outer before inner."""
    return block.walked
