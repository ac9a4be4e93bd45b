"""LLVM of the host: from forms to the addresses of their functions, and the call that runs a list.

Invariant: code is kept in memory only, by its text, and is never unloaded: what is remembered as an
address stays callable. A machine without the instructions that fix the results (fused multiply-add
and float16 conversions of x86, for which LLVM calls functions elsewhere) has no host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from astdsl.emulator.native.accesses import GO_THROUGH, AccessForm, access_function
from astdsl.emulator.native.loops import FUNCTIONS
from astdsl.emulator.native.table import NotCompiled
from astdsl.emulator.native.writer import Form, leaves, write_form
from astdsl.emulator.syntax import Immediate, Register

if TYPE_CHECKING:
    from astdsl.emulator.operands import Operands

__all__ = ["BLOCK_LANES", "ENTRIES", "Host", "host", "started"]

# A descriptor: the address of a function and of its operands (or the bits of constants).
ENTRIES = 8
# Lanes that go through a whole list before the next ones: a multiple of every width.
BLOCK_LANES = 256
_NEEDED = ("avx2", "fma", "f16c")
# Of LLVM: more takes five times as long, for loops that wait for memory.
_LEVEL = 0
_RUN = f"""
define void @run(ptr %list, i64 %count, i64 %start, i64 %stop) {{
entry:
  %size = mul i64 %count, {8 * ENTRIES}
  %last = getelementptr i8, ptr %list, i64 %size
  br label %block
block:
  %lane = phi i64 [ %start, %entry ], [ %after, %done ]
  %rest = sub i64 %stop, %lane
  %whole = icmp sgt i64 %rest, {BLOCK_LANES}
  %lanes = select i1 %whole, i64 {BLOCK_LANES}, i64 %rest
  br label %step
step:
  %at = phi ptr [ %list, %block ], [ %following, %step ]
  %function = load ptr, ptr %at, align 8
  call void %function(ptr %at, i64 %lane, i64 %lanes)
  %following = getelementptr i8, ptr %at, i64 {8 * ENTRIES}
  %more = icmp ult ptr %following, %last
  br i1 %more, label %step, label %done
done:
  %after = add i64 %lane, %lanes
  %again = icmp slt i64 %after, %stop
  br i1 %again, label %block, label %end
end:
  ret void
}}
"""


class Host:
    """A compiler for this machine, and the addresses of what it has compiled."""

    def __init__(self, machine: Any, binding: Any) -> None:
        self._machine = machine
        self._binding = binding
        self._addresses: dict[str, int] = {}
        self._forms: dict[Hashable, Form | None] = {}
        self._engines: list[Any] = []
        self._functions: dict[str, Callable[..., None]] = {}
        self._accesses: dict[tuple[AccessForm, int], int] = {}
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
        self.run: Callable[[int, int, int, int], None] = kind(
            self._load(_RUN).get_function_address("run")
        )

    def form(self, ops: Operands, width: int) -> Form | None:
        """Return the form of an instruction, None if it has none."""
        key = (width, *_signature(ops))
        if key not in self._forms:
            try:
                self._forms[key] = write_form(ops, width)
            except NotCompiled:
                self._forms[key] = None
        return self._forms[key]

    def addresses(self, forms: Iterable[Form]) -> list[int]:
        """Return the addresses of the functions of forms, compiling together those that are new."""
        forms = list(forms)
        fresh = {form.body: form for form in forms if form.body not in self._addresses}
        if fresh:
            declared = {line: None for form in fresh.values() for line in form.declared}
            functions = [f"define void @form{i}{body}" for i, body in enumerate(fresh)]
            engine = self._load("\n".join([*declared, *functions]))
            for i, body in enumerate(fresh):
                self._addresses[body] = engine.get_function_address(f"form{i}")
        return [self._addresses[form.body] for form in forms]

    def function(self, name: str) -> Callable[..., None]:
        """Return a function of `loops`, or the one that goes through a list of accesses."""
        found = self._functions.get(name)
        if found is None:
            _, text, n_arguments = GO_THROUGH if name == "go_through" else FUNCTIONS[name]
            kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n_arguments)
            found = self._functions[name] = kind(self._load(text).get_function_address(name))
        return found

    def access(self, form: AccessForm, width: int) -> int:
        """Return the address of the function of an access, for so many blocks at a time."""
        found = self._accesses.get((form, width))
        if found is None:
            function = access_function(form, width)
            engine = self._load(function.text)
            found = self._accesses[form, width] = engine.get_function_address(function.name)
        return found

    def _load(self, text: str) -> Any:
        engine = self._binding.create_mcjit_compiler(
            self._binding.parse_assembly(text), self._machine
        )
        engine.finalize_object()
        self._engines.append(engine)
        return engine


def _signature(ops: Operands) -> tuple[Hashable, ...]:
    """Return what the form of an instruction depends on."""
    instruction = ops.instruction
    key: list[Hashable] = [instruction.opcode, instruction.predicate is None, instruction.negated]
    key += [(type(each), len(ops.elements(each))) for each in ops.args]
    numbers: dict[str, int] = {}
    for each in leaves(ops):
        if isinstance(each, Register):
            place = ops.site.place(each.name)
            number = numbers.setdefault(each.name, len(numbers))
            key.append((number, None if place is None else place[0]))
        elif isinstance(each, Immediate):
            key.append(each)
        else:
            key.append(type(each).__name__)
    return tuple(key)


@lru_cache(maxsize=1)
def host() -> Host | None:
    """Return this machine's compiler, None where results could differ."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if not all(features.get(word, False) for word in _NEEDED):
        return None
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features.flatten(), opt=_LEVEL
    )
    return Host(machine, binding)


def started() -> Host | None:
    """Return the compiler if some program has run for so long that it was started."""
    return host() if host.cache_info().currsize else None
