"""One inline-PTX instruction as a row of data.

Invariant: a row knows its text, the types of its operands and its effect, and checks the operands
itself, because LLVM does not compare types with constraints: an ``i64`` under ``"f"`` silently
becomes a 32-bit register.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from astdsl.lowering.nvptx.debug import quoted
from astdsl.lowering.nvptx.values import LV


class Effect(Enum):
    """What the optimiser may do with an instruction; there is no fourth kind."""

    PURE = "pure"
    """A function of its operands: removed if unused, merged if equal, moved freely."""
    CONVERGES = "converges"
    """Exchanges values among the threads of a warp, or elects one: removed if unused, never
    duplicated."""
    ACTS = "acts"
    """Memory, barriers, asynchronous work, clocks: stays where and what it is."""


_MARKS: dict[Effect, tuple[str, str, str]] = {
    Effect.PURE: ("", "", " memory(none)"),
    Effect.CONVERGES: ("", "", " convergent"),
    Effect.ACTS: (" sideeffect", "~{memory}", " convergent"),
}

CONSTRAINTS: dict[str, str] = {
    "i1": "b",
    "i16": "h",
    "half": "h",
    "bfloat": "h",
    "i32": "r",
    "<2 x half>": "r",
    "<2 x bfloat>": "r",
    "float": "f",
    "i64": "l",
    "ptr": "l",
    "ptr addrspace(1)": "l",
    "double": "d",
}
"""The register class of each LLVM type.  Addresses in shared memory are passed as ``i32``."""

_NAME = re.compile(r"\$([a-z_]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsmRow:
    """An inline-PTX instruction, or a short fixed sequence of them.

    `text` names its operands ``$name``.  Operands are `outputs`, then `tied` (inputs that share
    the registers of the first outputs), then `inputs`; each maps a name to an LLVM type.
    """

    name: str
    text: str
    effect: Effect
    outputs: Mapping[str, str] = field(default_factory=dict)
    tied: int = 0
    inputs: Mapping[str, str] = field(default_factory=dict)
    requires: str | None = None
    """A feature of `target.py` that the instruction needs, beyond sm_90a."""
    operand_types: tuple[str, ...] = field(init=False)
    result_types: tuple[str, ...] = field(init=False)
    callee: str = field(init=False)
    attributes: str = field(init=False)

    def __post_init__(self) -> None:
        if self.tied > len(self.outputs):
            raise AssertionError(f"{self.name}: more tied inputs than outputs")
        outputs = tuple(self.outputs.values())
        sideeffect, clobber, attributes = _MARKS[self.effect]
        text, constraints = quoted(self._numbered_text()), ",".join(self._constraints(clobber))
        spelling = f'asm{sideeffect} {text}, "{constraints}"'
        object.__setattr__(self, "result_types", outputs)
        object.__setattr__(
            self, "operand_types", outputs[: self.tied] + tuple(self.inputs.values())
        )
        object.__setattr__(self, "callee", spelling)
        object.__setattr__(self, "attributes", attributes)

    def check(self, operands: Sequence[LV]) -> None:
        """Refuse operands whose types are not the row's: an error of ours."""
        given = tuple(operand.type for operand in operands)
        if given != self.operand_types:
            raise AssertionError(
                f"{self.name} takes operands ({', '.join(self.operand_types)}), "
                f"got ({', '.join(given)})"
            )

    def _numbered_text(self) -> str:
        first_input = len(self.outputs) + self.tied
        numbers = {name: number for number, name in enumerate(self.outputs)}
        numbers |= {name: first_input + number for number, name in enumerate(self.inputs)}
        named = set(_NAME.findall(self.text))
        # A wait only ties the registers that it makes valid; its text does not name them.
        unnamed = set(numbers) - named - set(list(self.outputs)[: self.tied])
        if unnamed or named - set(numbers):
            wrong = sorted(unnamed | named - set(numbers))
            raise AssertionError(f"{self.name}: text and operands disagree: {wrong}")
        return _NAME.sub(lambda match: f"${numbers[match[1]]}", self.text)

    def _constraints(self, clobber: str) -> list[str]:
        outputs = [f"={CONSTRAINTS[type]}" for type in self.outputs.values()]
        tied = [str(number) for number in range(self.tied)]
        inputs = [CONSTRAINTS[type] for type in self.inputs.values()]
        return outputs + tied + inputs + ([clobber] if clobber else [])


def sequence(name: str, parts: Sequence[tuple[AsmRow, Mapping[str, str]]]) -> AsmRow:
    """Join rows that act into one, so that nothing comes between them.

    Each part says what its operands are called in the whole; operands of one name are one, and
    come in the order of their first mention. None has results.
    """
    inputs: dict[str, str] = {}
    for row, names in parts:
        if row.effect is not Effect.ACTS or row.outputs:
            raise AssertionError(f"{name}: {row.name} does more than act")
        inputs |= {names[each]: type for each, type in row.inputs.items()}
    return AsmRow(
        name=name,
        text="\n".join(_renamed(row.text, names) for row, names in parts),
        effect=Effect.ACTS,
        inputs=inputs,
        requires=parts[0][0].requires,
    )


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return _NAME.sub(lambda match: f"${names[match[1]]}", text)
