"""The check of a call's arguments as machine code of the host, for launches that come often.

One loop, compiled once in a process, walks a list of objects beside a table of what they must be:
about a tenth of what the interpreter takes for the same comparisons. It reads the objects as C does
(Python's list, NumPy's C API "Array Structures"), and is used only where a trial with arrays of all
kinds shows that they are laid out so.

Invariant: what it accepts, the check of `recent` accepts, with the same addresses; it reads nothing
of an object but its type before that is known to be NumPy's array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from astdsl.runtime.launch import DIRECT

LOW_BITS = 15
WRITEABLE = 0x400  # NPY_ARRAY_WRITEABLE
_WORD = 8
_HEAD = object.__basicsize__

# check(list, table, addresses): 1 if the objects are as the table says, whose addresses are then
# written. An object's row is (type, 0), or (type, 1, low bits of the address, dtype, flags, rank,
# shape, strides); behind the rows stand the number of pairs that must be apart, and the pairs:
# (first, second, low, high), where second - first must not lie between low and high.
_TEXT = f"""
define i32 @check(ptr %objects, ptr %table, ptr %addresses) {{
entry:
  %count.at = getelementptr i8, ptr %objects, i64 {_HEAD}
  %count = load i64, ptr %count.at
  %items.at = getelementptr i8, ptr %objects, i64 {_HEAD + _WORD}
  %items = load ptr, ptr %items.at
  %wanted = load i64, ptr %table
  %rows = getelementptr i64, ptr %table, i64 1
  %same.count = icmp eq i64 %count, %wanted
  br i1 %same.count, label %objects.next, label %no
objects.next:
  %k = phi i64 [0, %entry], [%k.next, %object.done]
  %row = phi ptr [%rows, %entry], [%row.next, %object.done]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %object, label %pairs
object:
  %object.at = getelementptr ptr, ptr %items, i64 %k
  %it = load ptr, ptr %object.at
  %type.at = getelementptr i8, ptr %it, i64 {_HEAD - _WORD}
  %type = load i64, ptr %type.at
  %type.wanted = load i64, ptr %row
  %same.type = icmp eq i64 %type, %type.wanted
  br i1 %same.type, label %typed, label %no
typed:
  %is.array.at = getelementptr i64, ptr %row, i64 1
  %is.array = load i64, ptr %is.array.at
  %row.number = getelementptr i64, ptr %row, i64 2
  %array = icmp ne i64 %is.array, 0
  br i1 %array, label %data, label %object.done
data:
  %data.at = getelementptr i8, ptr %it, i64 {_HEAD}
  %address = load i64, ptr %data.at
  %out = getelementptr i64, ptr %addresses, i64 %k
  store i64 %address, ptr %out
  %low = load i64, ptr %row.number
  %differing = xor i64 %address, %low
  %low.differing = and i64 %differing, {LOW_BITS}
  %same.low = icmp eq i64 %low.differing, 0
  %dtype.at = getelementptr i8, ptr %it, i64 {_HEAD + 5 * _WORD}
  %dtype = load i64, ptr %dtype.at
  %dtype.wanted.at = getelementptr i64, ptr %row, i64 3
  %dtype.wanted = load i64, ptr %dtype.wanted.at
  %same.dtype = icmp eq i64 %dtype, %dtype.wanted
  %flags.at = getelementptr i8, ptr %it, i64 {_HEAD + 6 * _WORD}
  %flags.word = load i32, ptr %flags.at
  %flags = zext i32 %flags.word to i64
  %flags.wanted.at = getelementptr i64, ptr %row, i64 4
  %flags.wanted = load i64, ptr %flags.wanted.at
  %flags.there = and i64 %flags, %flags.wanted
  %same.flags = icmp eq i64 %flags.there, %flags.wanted
  %rank.at = getelementptr i8, ptr %it, i64 {_HEAD + _WORD}
  %rank.word = load i32, ptr %rank.at
  %rank = sext i32 %rank.word to i64
  %rank.wanted.at = getelementptr i64, ptr %row, i64 5
  %rank.wanted = load i64, ptr %rank.wanted.at
  %same.rank = icmp eq i64 %rank, %rank.wanted
  %a = and i1 %same.low, %same.dtype
  %b = and i1 %same.flags, %same.rank
  %as.wanted = and i1 %a, %b
  %shape.at = getelementptr i8, ptr %it, i64 {_HEAD + 2 * _WORD}
  %shape = load ptr, ptr %shape.at
  %strides.at = getelementptr i8, ptr %it, i64 {_HEAD + 3 * _WORD}
  %strides = load ptr, ptr %strides.at
  %row.shape = getelementptr i64, ptr %row, i64 6
  %row.strides = getelementptr i64, ptr %row.shape, i64 %rank
  %row.array = getelementptr i64, ptr %row.strides, i64 %rank
  br i1 %as.wanted, label %axes.next, label %no
axes.next:
  %d = phi i64 [0, %data], [%d.next, %axis]
  %more.axes = icmp slt i64 %d, %rank
  br i1 %more.axes, label %axis, label %object.done
axis:
  %extent.at = getelementptr i64, ptr %shape, i64 %d
  %extent = load i64, ptr %extent.at
  %extent.wanted.at = getelementptr i64, ptr %row.shape, i64 %d
  %extent.wanted = load i64, ptr %extent.wanted.at
  %same.extent = icmp eq i64 %extent, %extent.wanted
  %stride.at = getelementptr i64, ptr %strides, i64 %d
  %stride = load i64, ptr %stride.at
  %stride.wanted.at = getelementptr i64, ptr %row.strides, i64 %d
  %stride.wanted = load i64, ptr %stride.wanted.at
  %same.stride = icmp eq i64 %stride, %stride.wanted
  %same.axis = and i1 %same.extent, %same.stride
  %d.next = add i64 %d, 1
  br i1 %same.axis, label %axes.next, label %no
object.done:
  %row.next = phi ptr [%row.number, %typed], [%row.array, %axes.next]
  %k.next = add i64 %k, 1
  br label %objects.next
pairs:
  %pair.count = load i64, ptr %row
  %first.pair = getelementptr i64, ptr %row, i64 1
  br label %pairs.next
pairs.next:
  %n = phi i64 [0, %pairs], [%n.next, %pair]
  %pair.row = phi ptr [%first.pair, %pairs], [%pair.row.next, %pair]
  %more.pairs = icmp slt i64 %n, %pair.count
  br i1 %more.pairs, label %pair, label %yes
pair:
  %first = load i64, ptr %pair.row
  %second.at = getelementptr i64, ptr %pair.row, i64 1
  %second = load i64, ptr %second.at
  %near.at = getelementptr i64, ptr %pair.row, i64 2
  %near = load i64, ptr %near.at
  %far.at = getelementptr i64, ptr %pair.row, i64 3
  %far = load i64, ptr %far.at
  %first.at = getelementptr i64, ptr %addresses, i64 %first
  %first.address = load i64, ptr %first.at
  %second.address.at = getelementptr i64, ptr %addresses, i64 %second
  %second.address = load i64, ptr %second.address.at
  %apart = sub i64 %second.address, %first.address
  %is.over = icmp slt i64 %near, %apart
  %is.under = icmp slt i64 %apart, %far
  %overlap = and i1 %is.over, %is.under
  %n.next = add i64 %n, 1
  %pair.row.next = getelementptr i64, ptr %pair.row, i64 4
  br i1 %overlap, label %no, label %pairs.next
yes:
  ret i32 1
no:
  ret i32 0
}}
"""

Pairs = Sequence[tuple[int, int, int, int]]
Check = Callable[[Sequence[Any]], "list[Any] | None"]


def native_check(
    objects: Sequence[Any], values: Sequence[Any], written: frozenset[int], apart: Pairs
) -> Check | None:
    """Return the check for calls like one with these objects; None where there is none.

    `values` are the addresses of the arrays, `written` the positions of those that are written;
    `apart` lists pairs of positions, and how far the second must not be from the first.
    """
    return _check(objects, values, written, apart) if _works() else None


def _check(
    objects: Sequence[Any], values: Sequence[Any], written: frozenset[int], apart: Pairs
) -> Check:
    rows = (_row(x, values[k], k in written) for k, x in enumerate(objects))
    pairs = [word for pair in apart for word in pair]
    words = [len(objects), *(word for row in rows for word in row), len(pairs) // 4, *pairs]
    table = (ctypes.c_int64 * len(words))(*words)
    numbers = [k for k, x in enumerate(objects) if type(x) is not DIRECT]
    where, addresses = ctypes.addressof(table), ctypes.c_int64 * len(objects)
    accepts = _compiled()

    def check(objects: Sequence[Any]) -> list[Any] | None:
        found = addresses()
        if not accepts(id(objects), where, found):
            return None
        values: list[Any] = found[:]
        for k in numbers:
            values[k] = objects[k]
        return values

    # The table lives as long as the check, and so do the types and dtypes whose addresses are in
    # it: another one must not take their place.
    check.__dict__["compared"] = table, [(type(x), getattr(x, "dtype", None)) for x in objects]
    return check


def _row(given: Any, address: int, is_written: bool) -> list[int]:
    if type(given) is not DIRECT:
        return [id(type(given)), 0]
    flags = WRITEABLE if is_written else 0
    head = [id(type(given)), 1, address & LOW_BITS, id(given.dtype), flags, given.ndim]
    return [*head, *given.shape, *given.strides]


@cache
def _engine() -> Any:
    """Compile the loop, by LLVM for this processor; what holds the code is kept."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(opt=2)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(_TEXT), machine)
    engine.finalize_object()
    return engine


@cache
def _compiled() -> Callable[[int, int, Any], int]:
    # PYFUNCTYPE keeps the interpreter's lock, so that no list or array changes meanwhile.
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    accepts: Callable[[int, int, Any], int] = kind(_engine().get_function_address("check"))
    return accepts


@cache
def _works() -> bool:
    """Whether objects are laid out as the loop reads them: it accepts the right ones alone."""
    if DIRECT is None or _HEAD != 2 * _WORD or ctypes.sizeof(ctypes.c_void_p) != _WORD:
        return False
    memory = np.zeros(96, np.float32)
    given = memory[:24].reshape(2, 3, 4)
    check = _check([given, 1], [_address(given), 1], frozenset({0}), [(0, 0, 0, 0)])
    read_only = given.copy()
    read_only.flags.writeable = False
    others = [
        memory[1:25].reshape(2, 3, 4),
        memory[:24].reshape(3, 2, 4),
        memory[:24],
        memory[:48].reshape(2, 3, 8)[:, :, ::2],
        given.view(np.int32),
        read_only,
    ]
    refused = all(check([other, 1]) is None for other in others) and check([given, 1.0]) is None
    return refused and check([given]) is None and check([given, 7]) == [_address(given), 7]


def _address(given: Any) -> int:
    address: int = given.__array_interface__["data"][0]
    return address
