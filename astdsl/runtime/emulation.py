"""How the emulator runs kernels: what `on`, `device`, the environment and `astdsl check` may say.

Invariant: what is said nearest to the call counts: `kernel.on("emulator", ...)`, then the `with`
around it, then the environment, then what is usual.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from astdsl.errors import DeviceUnavailable, did_you_mean

if TYPE_CHECKING:
    from typing import TypedDict

    class Emulation(TypedDict, total=False):
        """What may be said; the words of each are in `OPTIONS`, the numbers are seeds."""

        completion: str | int
        order: str | int
        fp8_accumulate: str


# Of each option: its variable in the environment, its words (the first is usual), seeds or not.
OPTIONS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "completion": ("ASTDSL_COMPLETION", ("late", "early"), True),
    "order": ("ASTDSL_ORDER", ("min-pc", "max-pc", "round-robin"), True),
    "fp8_accumulate": ("ASTDSL_FP8_ACCUMULATE", ("exact", "hardware"), False),
}
_said: ContextVar[Mapping[str, Any]] = ContextVar("said", default={})  # noqa: B039  never changed


def emulation() -> dict[str, Any]:
    """Return every option of the emulator as it counts here, numbers as integers.

    Raises DeviceUnavailable for what the environment says and means nothing.
    """
    said = _said.get()
    return {name: _number(said[name] if name in said else _usual(name)) for name in OPTIONS}


def _usual(name: str) -> Any:
    variable, words, _ = OPTIONS[name]
    value = _number(os.environ.get(variable) or words[0])
    _require_known(name, value, f"the variable {variable}")
    return value


def _number(value: Any) -> Any:
    return int(value) if str(value).isdecimal() else value


@contextmanager
def emulated(options: Mapping[str, Any]) -> Iterator[None]:
    """Let the emulator run as the options say; what they leave open stays as it was."""
    token = _said.set({**_said.get(), **options})
    try:
        yield
    finally:
        _said.reset(token)


def check_options(device: str, options: Mapping[str, Any]) -> None:
    """Refuse options of another device than the emulator, unknown ones, and unknown words."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise DeviceUnavailable(
                f"no device has an option `{name}`",
                help=did_you_mean(name, OPTIONS) or f"the emulator has {', '.join(OPTIONS)}",
            )
        if device != "emulator":
            raise DeviceUnavailable(
                f"`{name}` is an option of the emulator"
                + (f", which the device `{device}` does not have" if device else ""),
                help=f'name the device: `"emulator", {name}={value!r}`',
            )
        _require_known(name, value, f"`{name}` of the emulator")


def _require_known(name: str, value: Any, what: str) -> None:
    _, words, takes_seeds = OPTIONS[name]
    if value not in words and not (takes_seeds and _is_seed(value)):
        told = ", ".join(f'"{word}"' for word in words)
        seeds = ", or a seed, an integer of 0 or more" if takes_seeds else ""
        raise DeviceUnavailable(f"{what} is {value!r}", help=f"write one of {told}{seeds}")


def _is_seed(value: Any) -> bool:
    return type(value) is int and value >= 0
