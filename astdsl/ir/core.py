"""Nodes of the IR: values, blocks, operations, modules.

Invariant: nodes are immutable and compared by identity. A field's annotation is its role: `Value`
or `tuple[Value, ...]` an operand, `Block` or `tuple[Block, ...]` a region, anything else an
attribute. Walking, cloning, printing and renaming read these roles and know no operation by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
class _NodeMeta(type):
    """Makes slots and the table of fields from annotations, cheaper than a dataclass does."""

    fields: dict[str, str]
    by_role: dict[str, tuple[str, ...]]
    many: frozenset[str]  # the operands and regions that are tuples
    defaults: dict[str, Any]

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> _NodeMeta:
        own = {k: v for k, v in space.get("__annotations__", {}).items() if "ClassVar" not in v}
        defaults = {k: space.pop(k) for k in own if k in space}
        space["__slots__"] = (*own, *space.pop("extra_slots", ()))
        cls = super().__new__(mcs, name, bases, space)
        inherited = [b for b in bases if isinstance(b, _NodeMeta)]
        cls.fields = {k: v for b in inherited for k, v in b.fields.items()}
        cls.fields |= {k: _ROLES.get(v, ATTRIBUTE) for k, v in own.items()}
        cls.by_role = {
            role: tuple(k for k, v in cls.fields.items() if v == role)
            for role in (OPERAND, REGION, ATTRIBUTE)
        }
        tuples = {k for k, v in own.items() if v in _ROLES and v.startswith("tuple")}
        cls.many = frozenset(tuples).union(*(b.many for b in inherited))
        cls.defaults = {k: v for b in inherited for k, v in b.defaults.items()} | defaults
        return cls


class Node(metaclass=_NodeMeta):
    """A frozen, slotted, keyword-only node with identity equality."""

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        given = values if len(values) == len(cls.fields) else cls.defaults | values
        if given.keys() != cls.fields.keys():
            wrong = sorted(given.keys() ^ cls.fields.keys())
            raise AssertionError(f"{cls.__name__}: missing or unknown fields {', '.join(wrong)}")
        put = object.__setattr__
        for name, value in given.items():
            put(self, name, value)

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


class Op(Node):
    """An operation. A subclass declares fields, `effect`, and its results' types."""

    span: Span
    extra_slots = ("is_sound", "operands", "regions", "results")
    effect: ClassVar[str] = PURE
    # Whether regions use nothing that is made outside of them.
    isolated: ClassVar[bool] = False
    # Every operand and every region, in order of the fields, and the results; made once, because
    # whoever walks a program asks for them all the time.
    operands: ClassVar[tuple[Value, ...]]
    regions: ClassVar[tuple[Block, ...]]
    results: ClassVar[tuple[Value, ...]]
    # Whether `verify` has been asked already: nothing changes what it says.
    is_sound: ClassVar[bool]

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._complete()

    def _complete(self) -> None:
        put = object.__setattr__
        put(self, "is_sound", False)
        put(self, "operands", self._flat(OPERAND))
        put(self, "regions", self._flat(REGION))
        hint = self.result_hint()
        put(self, "results", tuple([Value(t, hint) for t in self.result_types()]))

    def remade(self, changes: dict[str, Any]) -> Self:
        """Return an operation with some fields changed, and new results with the old hints."""
        new = object.__new__(type(self))
        put = object.__setattr__
        for name in type(self).fields:
            put(new, name, changes[name] if name in changes else getattr(self, name))
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

    def _flat(self, role: str) -> tuple[Any, ...]:
        names = type(self).by_role[role]
        if not names:
            return ()
        many = type(self).many
        found: tuple[Any, ...] = ()
        for name in names:
            value = getattr(self, name)
            found += value if name in many else (value,)
        return found

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


def walk(block: Block) -> Iterator[Op]:
    """Yield every operation of a block and of the regions inside it, outer before inner."""
    for op in block.ops:
        yield op
        for region in op.regions:
            yield from walk(region)
