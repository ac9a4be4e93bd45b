"""`astdsl dump`: a kernel at every stage of its compilation.

Invariant: nothing is compiled beyond the stages that are asked for.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from astdsl.cli.arguments import add_options, read_arguments
from astdsl.cli.files import find_kernel
from astdsl.cli.keep import add_option, keep
from astdsl.cli.render import Screen
from astdsl.errors import DeviceUnavailable
from astdsl.lowered import Lowered


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: what its option says, the language it is written in, and how to get it."""

    help: str
    language: str
    text: Callable[[Lowered], str]


def _cubin(lowered: Lowered) -> str:
    costs = dataclasses.asdict(lowered.resources)
    lines = [f"{name}: {value}" for name, value in costs.items() if name != "messages"]
    return "\n".join([f"bytes: {len(lowered.cubin)}", *lines, *lowered.resources.messages])


STAGES = {
    "ast": Stage("the rewritten Python", "python", lambda lowered: lowered.source),
    "ir": Stage("the typed IR (the default)", "ir", lambda lowered: lowered.ir),
    "schedule": Stage("the IR in explicit operations", "ir", lambda lowered: lowered.schedule),
    "llvm": Stage("LLVM's text", "llvm", lambda lowered: lowered.llvm),
    "ptx": Stage("the PTX", "ptx", lambda lowered: lowered.ptx),
    "cubin": Stage("what it costs; piped by itself, the file", "", _cubin),
    "sass": Stage("the machine code", "sass", lambda lowered: lowered.sass),
}
HELP = "print a kernel at any stage of its compilation"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser)
    add_option(parser)
    for name, stage in STAGES.items():
        parser.add_argument(
            f"--{name}", dest="stages", action="append_const", const=name, help=stage.help
        )
    parser.add_argument("--all", action="store_true", help="every stage")
    parser.add_argument("--after", metavar="PASS", default="", help="the IR after a pass")


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Print the stages that are asked for."""
    kernel = find_kernel(options.place)
    signature = kernel.signature
    arguments, constants = read_arguments(signature, options.arg, options.const)
    lowered = kernel.lower(**arguments, **constants, target=options.target)
    if options.keep:
        keep(options.keep, lowered)
    if options.after:
        _show(screen, lowered, {options.after: lowered.after(options.after)})
        return 0
    chosen = list(STAGES) if options.all else _in_order(options.stages or ["ir"])
    if chosen == ["cubin"] and not screen.is_terminal and not screen.as_json:
        screen.show_bytes(lowered.cubin)
        return 0
    _show(screen, lowered, {name: _text(lowered, name, options.all) for name in chosen})
    return 0


def _in_order(names: list[str]) -> list[str]:
    return [name for name in STAGES if name in names]


def _text(lowered: Lowered, name: str, is_optional: bool) -> str:
    """Return a stage; among all of them, one that this machine cannot make is left out."""
    try:
        return STAGES[name].text(lowered)
    except DeviceUnavailable as error:
        if not is_optional:
            raise
        return f"{error.message}: {error.help}"


def _show(screen: Screen, lowered: Lowered, texts: dict[str, str]) -> None:
    if screen.as_json:
        screen.show_json(_as_object(lowered, texts))
        return
    for name, text in texts.items():
        if len(texts) > 1:
            screen.show(f"==> {name} <==")
        screen.show(text, STAGES[name].language if name in STAGES else "ir")
        if len(texts) > 1:
            screen.show("")


def _as_object(lowered: Lowered, texts: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"kernel": lowered.module.name, "target": lowered.target, **texts}
    if "cubin" in texts:
        found["cubin"] = base64.b64encode(lowered.cubin).decode()
        found["resources"] = dataclasses.asdict(lowered.resources)
    return found
