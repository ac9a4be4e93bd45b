"""What a PTX text says, as plain data: operands, instructions, variables, functions, module.

Invariant: names are unique within a function (scopes `{ }` are resolved by the parser), and every
instruction knows its PTX line and, from `.loc`, its kernel line.
Source: PTX ISA sections 4 (syntax), 5 (state spaces), 6 (operands).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from astdsl.emulator.faults import KernelLine


@dataclass(frozen=True, slots=True)
class Register:
    """`%r1`, or a special register such as `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal; `value` holds the integer, or the bits when `kind` is "f32" or "f64"."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, a function or a label by name, plus a byte offset; `_` is the sink."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, or `[base, extra...]` as tensor copies write it."""

    base: Operand
    offset: int = 0
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`, the two results of `setp`, `shfl`, `elect`, `match`."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """`!%p`."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Group:
    """`(a, b)`, the result or argument list of a `call`."""

    elements: tuple[Operand, ...]


Operand = Register | Immediate | Symbol | Address | Vector | Pair | Negated | Group


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `@p opcode operands;`.

    `opcode` is the whole dotted name; `modifiers` are its parts after the first. `used_bytes` has
    a bit for every byte of a load that matters, None where all do (pragma `used_bytes_mask`).
    """

    opcode: str
    operands: tuple[Operand, ...]
    predicate: str | None
    negated: bool
    ptx_line: int
    kernel_line: KernelLine | None
    used_bytes: int | None = None

    @property
    def modifiers(self) -> list[str]:
        """Return the dotted parts after the base name, in order."""
        return self.opcode.split(".")[1:]


@dataclass(frozen=True, slots=True)
class Masked:
    """`0xFF00(value)`: a byte of an address or number, in an initial value (PTX ISA 5.4.4)."""

    mask: int
    value: Immediate | Symbol


Initial = Immediate | Symbol | Masked


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable: `count` elements of `type`; -1 = extern array of unknown length."""

    space: str
    type: str
    name: str
    count: int
    align_bytes: int
    is_array: bool
    initial: tuple[Initial, ...] = ()


@dataclass(slots=True)
class Function:
    """An `.entry` or `.func` with its body."""

    name: str
    is_entry: bool
    parameters: list[Variable]
    results: list[Variable]
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    register_ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    has_body: bool = False

    def register_type(self, name: str) -> str | None:
        """Return the declared type of a register, None when it is not declared here."""
        exact = self.registers.get(name)
        if exact is not None:
            return exact
        prefix = name.rstrip("0123456789")
        declared = self.register_ranges.get(prefix)
        if declared is None or prefix == name or int(name[len(prefix) :]) >= declared[1]:
            return None
        return declared[0]


@dataclass(slots=True)
class Module:
    """A whole PTX text."""

    version: str = ""
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
