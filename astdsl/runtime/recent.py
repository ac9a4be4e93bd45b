"""Telling a call like the last one from another: the shortest way to a launch.

For each prepared launch a function is written that compares a call's objects, one after the other,
with what the launch was prepared for, and reads their addresses.

Invariant: it accepts nothing that `launch.describe` would give another key, and no output that may
share memory with another argument; what it does not accept goes the long way. The text that is
compiled holds names and numbers of ours only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from astdsl.runtime.launch import DATA_WORD, DIRECT, NUMBERS, WORDS, Launch
from astdsl.runtime.native import LOW_BITS, Check, native_check

# Compiling the check for the host, LLVM's loading included, takes what it saves in so many calls.
NATIVE_AFTER_CALLS = 1000


class Recent:
    """A launch that came twice, and what tells whether a call is like it.

    `owner` is what the launch was made from.
    """

    __slots__ = ("_calls", "_check", "launch", "owner")

    def __init__(self, check: Check, owner: Any, launch: Launch) -> None:
        self._check = check
        self._calls = 0
        self.owner = owner
        self.launch = launch

    def known(self, objects: Sequence[Any]) -> list[Any] | None:
        """Return addresses and numbers of a call like the last one; None for another call."""
        values = self._check(objects)
        self._calls += 1
        if self._calls == NATIVE_AFTER_CALLS and values is not None:
            launch = self.launch
            native = native_check(objects, values, launch.written, tuple(launch.apart))
            self._check = native or self._check
        return values


def recent_of(
    objects: Sequence[Any], values: Sequence[Any], owner: Any, launch: Launch
) -> Recent | None:
    """Return what knows calls like one with these objects; None where nothing can."""
    check = check_of(objects, values, launch)
    return None if check is None else Recent(check, owner, launch)


def check_of(objects: Sequence[Any], values: Sequence[Any], launch: Launch) -> Check | None:
    """Return the check for calls like one with these objects; None where there is none.

    `values` are the objects' addresses and numbers. There is one for NumPy's arrays and numbers.
    """
    if (
        not objects
        or DIRECT is None
        or any(type(x) is not DIRECT and type(x) not in NUMBERS for x in objects)
    ):
        return None
    names: dict[str, Any] = {"words": WORDS}
    written = launch.written
    lines = [f"def check(objects):\n    {''.join(f'x{k}, ' for k in range(len(objects)))}= objects"]
    conditions = [c for k, x in enumerate(objects) for c in _conditions(k, x, k in written, names)]
    lines.append(f"    if not ({' and '.join(conditions) or 'True'}):\n        return None")
    arrays = [k for k, x in enumerate(objects) if type(x) is DIRECT]
    lines += [f"    p{k} = words[(id(x{k}) >> 3) + {DATA_WORD}]" for k in arrays]
    bits = " | ".join(_low_bits(k, values[k] & LOW_BITS) for k in arrays) or "0"
    lines.append(f"    if ({bits}) & {LOW_BITS}:\n        return None")
    for i, j, low, high in launch.apart:
        lines.append(f"    if {low} < p{j} - p{i} < {high}:\n        return None")
    given = ", ".join(f"p{k}" if k in arrays else f"x{k}" for k in range(len(objects)))
    lines.append(f"    return [{given}]")
    exec("\n".join(lines), names)  # noqa: S102 (names and numbers of ours, see above)
    check: Check = names["check"]
    return check


def _low_bits(position: int, expected: int) -> str:
    return f"(p{position} ^ {expected})" if expected else f"p{position}"


def _conditions(
    position: int, given: Any, is_written: bool, names: dict[str, Any]
) -> Iterator[str]:
    """Yield what an object must be; `names` gets what the conditions compare with."""
    here = f"x{position}"
    names[f"k{position}"] = type(given)
    yield f"type({here}) is k{position}"
    if type(given) is not DIRECT:
        return
    for name in ("shape", "strides", "dtype"):
        names[f"{name}{position}"] = getattr(given, name)
    yield f"{here}.shape == shape{position}"
    yield f"{here}.strides == strides{position}"
    yield f"{here}.dtype is dtype{position}"
    if is_written:
        yield f"{here}.flags.writeable"
