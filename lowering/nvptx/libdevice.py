"""Elementary functions, from NVIDIA's libdevice (package nvidia-nvvm).

Each function is taken out of ``libdevice.10.bc`` once, optimised, and kept as LLVM text in the
user's private cache.  Invariant: the text is self-contained, all of it internal to the module that
uses it, and inlined there; ``__nvvm_reflect`` is resolved for IEEE arithmetic (subnormals kept,
division and square root rounded to nearest).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from llvmlite import binding

from astdsl import store
from astdsl.lowering.nvptx import pipeline
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.tools import find_file
from astdsl.lowering.nvptx.values import LV
from astdsl.lowering.target import Target

FORMAT = 1
"""Part of the cache key: raise it when the way of extracting changes."""


class Function(NamedTuple):
    """One function of libdevice."""

    symbol: str
    instructions: int
    """PTX instructions of one call, measured on LLVM 20 (LLVM 22 has up to a fifth fewer)."""
    arity: int = 1


FUNCTIONS: dict[tuple[str, str], Function] = {
    ("exp", "float"): Function("__nv_expf", 14),
    ("exp", "double"): Function("__nv_exp", 44),
    ("exp2", "float"): Function("__nv_exp2f", 1),
    ("exp2", "double"): Function("__nv_exp2", 48),
    ("log", "float"): Function("__nv_logf", 28),
    ("log", "double"): Function("__nv_log", 67),
    ("log2", "float"): Function("__nv_log2f", 30),
    ("log2", "double"): Function("__nv_log2", 69),
    ("tanh", "float"): Function("__nv_tanhf", 17),
    ("tanh", "double"): Function("__nv_tanh", 55),
    ("erf", "float"): Function("__nv_erff", 34),
    ("erf", "double"): Function("__nv_erf", 55),
    ("sin", "float"): Function("__nv_sinf", 100),
    ("sin", "double"): Function("__nv_sin", 235),
    ("cos", "float"): Function("__nv_cosf", 101),
    ("cos", "double"): Function("__nv_cos", 236),
    ("rsqrt", "float"): Function("__nv_rsqrtf", 1),
    ("rsqrt", "double"): Function("__nv_rsqrt", 1),
    ("pow", "float"): Function("__nv_powf", 112, arity=2),
    ("pow", "double"): Function("__nv_pow", 228, arity=2),
    ("fmod", "float"): Function("__nv_fmodf", 77, arity=2),
    ("fmod", "double"): Function("__nv_fmod", 85, arity=2),
}
"""By name and LLVM type.  Callers compute f16 and bf16 in ``float``."""

_REFLECTED = {"__CUDA_FTZ": 0, "__CUDA_PREC_SQRT": 1, "__CUDA_PREC_DIV": 1}
_REFLECT_CALL = re.compile(r"call i32 @__nvvm_reflect\(ptr[^@)]*(@[\w.]+)\)( #\d+)?")
_STRING = re.compile(r'^(@[\w.]+) = .*c"(\w+)\\00"', re.MULTILINE)
_PREDECESSORS = re.compile(r"\s*; preds = .*$", re.MULTILINE)
_ATTRIBUTES = re.compile(r" #\d+\b|, ![\w.]+ !\d+")
_DEFINED = re.compile(r"define (?P<linkage>internal )?.*?@(?P<name>[\w.$]+)\(")
_GLOBAL = re.compile(r"@(?P<name>[\w.$]+) = ")
_DECLARED = re.compile(r"declare .*?@(?P<name>[\w.$]+)\(")


_DROPPED = ("source_filename", "target ", "attributes ", "!", ";")


class Entity(NamedTuple):
    """One thing at the top of an LLVM module."""

    name: str
    text: str
    is_declaration: bool


def call(builder: Builder, name: str, *operands: LV, target: Target) -> LV:
    """Call an elementary function on ``float`` or ``double`` values, one result for all.

    Raises AssertionError for a name or type that is not in `FUNCTIONS`, and DeviceUnavailable if
    libdevice is not installed.
    """
    type = operands[0].type
    function = FUNCTIONS.get((name, type))
    if function is None:
        raise AssertionError(f"libdevice has no {name} on {type} that we know")
    if [operand.type for operand in operands] != [type] * function.arity:
        raise AssertionError(f"{name} takes {function.arity} operands of {type}, got {operands}")
    for entity in entities(function.symbol, target):
        add = builder.globals.declare if entity.is_declaration else builder.globals.define
        add(entity.name, entity.text)
    return builder.call(function.symbol, type, *operands)


@cache
def entities(symbol: str, target: Target) -> tuple[Entity, ...]:
    """Give the texts that define `symbol`: from the cache, else out of libdevice."""
    key = _key(symbol, target)
    text = (store.read(key) or b"").decode(errors="replace")
    if not _is_sound(text, symbol, target):
        text = extract(symbol, target)
        store.write(key, text.encode())
    return tuple(_split(text))


def extract(symbol: str, target: Target) -> str:
    """Take one function out of libdevice: optimised LLVM text that needs nothing else."""
    machine = pipeline.target_machine(target)
    module = binding.parse_bitcode(_bitcode())
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != symbol:
            each.linkage = "internal"
    _remove_unused(module, machine)
    module = pipeline.parse(_resolved(str(module), target), machine)
    pipeline.optimise_fully(module, machine)
    return _self_contained(str(module))


def _remove_unused(module: binding.ModuleRef, machine: binding.TargetMachine) -> None:
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options())
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, builder)


def _resolved(text: str, target: Target) -> str:
    # LLVM's own pass answers 0 to all questions but two; these are the answers that nvcc gives.
    major, minor = target.compute_capability
    answers = _REFLECTED | {"__CUDA_ARCH": 100 * major + 10 * minor}
    strings = dict(_STRING.findall(text))
    text = _REFLECT_CALL.sub(lambda call: f"add i32 0, {answers[strings[call[1]]]}", text)
    return re.sub(r"^target .*$", "", text, flags=re.MULTILINE)


def _self_contained(text: str) -> str:
    text = _ATTRIBUTES.sub("", _PREDECESSORS.sub("", text))
    blocks = (line for line in text.splitlines() if line and not line.startswith(_DROPPED))
    return "\n".join(_internal(line) for line in blocks) + "\n"


def _internal(line: str) -> str:
    match = _DEFINED.match(line)
    if match is None:
        return line
    line = line if match["linkage"] else line.replace("define ", "define internal ", 1)
    return line.removesuffix("{") + "alwaysinline {"


def _split(text: str) -> Iterator[Entity]:
    lines = iter(text.splitlines())
    for line in lines:
        if declared := _DECLARED.match(line):
            yield Entity(declared["name"], line, is_declaration=True)
        elif defined := _DEFINED.match(line):
            yield Entity(defined["name"], _body(line, lines), is_declaration=False)
        elif found := _GLOBAL.match(line):
            yield Entity(found["name"], line, is_declaration=False)
        else:
            raise AssertionError(f"unexpected line in an extracted function: {line}")


def _body(head: str, lines: Iterator[str]) -> str:
    body = [head]
    for line in lines:
        body.append(line)
        if line == "}":
            break
    return "\n".join(body)


def _is_sound(text: str, symbol: str, target: Target) -> bool:
    # A cached file is data: it counts only if LLVM reads it and it defines what we asked for.
    try:
        module = pipeline.parse(text, pipeline.target_machine(target))
    except AssertionError:
        return False
    return any(each.name == symbol and not each.is_declaration for each in module.functions)


def _key(symbol: str, target: Target) -> str:
    version = ".".join(str(part) for part in pipeline.llvm_version())
    return f"libdevice {FORMAT} {symbol} {target.cpu} {_bitcode_digest()} LLVM {version}"


@cache
def _bitcode() -> bytes:
    return find_file("nvvm/libdevice/libdevice.10.bc", "nvidia-nvvm").read_bytes()


@cache
def _bitcode_digest() -> str:
    return hashlib.sha256(_bitcode()).hexdigest()
