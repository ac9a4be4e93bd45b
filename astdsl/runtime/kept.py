"""Compiled kernels on disk: PTX with its launch plan, and cubins, as data and nothing else.

Invariant: the key holds all that the content depends on (LANGUAGE: the printed typed IR with its
source lines, constants, target and versions); what does not read back exactly is a miss.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from astdsl import store
from astdsl.ir.core import Module
from astdsl.ir.printer import print_module
from astdsl.records import dataclass
from astdsl.runtime.artifact import Code
from astdsl.runtime.plans import BadData, count, data_of, fields_of, items, plan_of, text

FORMAT = 1


@dataclass(frozen=True, slots=True)
class KeptCubin:
    """A cubin, and what its assembler said of it."""

    image: bytes
    registers: int
    spill_bytes: int
    stack_bytes: int
    messages: tuple[str, ...]
    assembler: str


def code_key(module: Module, target: str, compiler: str) -> str:
    """Return the key of a module's PTX; `compiler` names the versions that make it."""
    return f"code {FORMAT}\n{target}\n{compiler}\n{print_module(module, spans=True)}"


def cubin_key(ptx: str, target: str, assembler: str) -> str:
    """Return the key of the cubin of a text of PTX."""
    digest = hashlib.sha256(ptx.encode()).hexdigest()
    return f"cubin {FORMAT}\n{target}\n{assembler}\n{digest}"


def read_code(key: str) -> Code | None:
    """Return the PTX and the plan that are kept under a key."""
    found = _read(key)
    try:
        return None if found is None else Code(found[1].decode(), plan_of(found[0]))
    except (BadData, UnicodeDecodeError):
        return None


def write_code(key: str, code: Code) -> None:
    """Keep PTX and plan."""
    _write(key, data_of(code.plan), code.ptx.encode())


def read_cubin(key: str) -> KeptCubin | None:
    """Return the cubin that is kept under a key."""
    found = _read(key)
    try:
        return None if found is None else _cubin(*found)
    except BadData:
        return None


def write_cubin(key: str, cubin: Any) -> None:
    """Keep a cubin with its costs."""
    costs = {name: getattr(cubin, name) for name in _COSTS}
    _write(key, costs | {"messages": list(cubin.messages)}, cubin.image)


_COSTS = ("registers", "spill_bytes", "stack_bytes", "assembler")


def _cubin(costs: Any, image: bytes) -> KeptCubin:
    fields = fields_of(costs, *_COSTS, "messages")
    return KeptCubin(
        image=image,
        registers=count(fields["registers"]),
        spill_bytes=count(fields["spill_bytes"]),
        stack_bytes=count(fields["stack_bytes"]),
        messages=items(fields["messages"], text),
        assembler=text(fields["assembler"]),
    )


def _read(key: str) -> tuple[Any, bytes] | None:
    content = store.read(key)
    if content is None:
        return None
    head, _, body = content.partition(b"\n")
    try:
        return json.loads(head), body
    except ValueError:
        return None


def _write(key: str, head: Any, body: bytes) -> None:
    store.write(key, json.dumps(head).encode() + b"\n" + body)
