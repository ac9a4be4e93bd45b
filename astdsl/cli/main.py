"""`astdsl COMMAND ...`: chooses the command, and turns what went wrong into reports and exit codes.

Invariant: the exit code is 0 good, 1 the kernel is wrong, 2 the call is wrong; a mistake of the
user never shows a frame of ours.
"""

from __future__ import annotations

import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NoReturn

import astdsl
from astdsl.cli import check, doctor, dump, emulate, explain, repl, run
from astdsl.cli.render import Screen
from astdsl.errors import (
    AliasedOutput,
    BadArgument,
    BadCommand,
    DeviceUnavailable,
    FailedAssertion,
    KernelError,
    WrongTarget,
    did_you_mean,
)
from astdsl.runtime.boundary import LIBRARIES


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its line of help, its options, and what it does."""

    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace, Screen], int]


COMMANDS = {
    "dump": Command(dump.HELP, dump.add_arguments, dump.run),
    "run": Command(run.HELP, run.add_arguments, run.run),
    "check": Command(check.HELP, check.add_arguments, check.run),
    "emulate": Command(emulate.HELP, emulate.add_arguments, emulate.run),
    "explain": Command(explain.HELP, explain.add_arguments, explain.run),
    "repl": Command(repl.HELP, repl.add_arguments, repl.run),
    "doctor": Command(doctor.HELP, doctor.add_arguments, doctor.run),
}

# Commands that are to come, and what to use until then.
LATER = {
    "timeline": "`astdsl dump --schedule` prints the phases",
    "bench": "the scripts in bench/ print timings",
}

# Commands whose output is for other programs, as all are with `--json`: what the user's file prints
# meanwhile goes to standard error.
PRODUCING = {"dump"}

# Mistakes of the call; all others are the kernel's.
OF_THE_CALL = (
    AliasedOutput, BadArgument, BadCommand, DeviceUnavailable, FailedAssertion, WrongTarget,
)  # fmt: skip

# This package and its entry: a user's file is never run as `__main__`.
OURS = {"astdsl", "__main__"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    screen = Screen(as_json="--json" in given)
    sys.excepthook = partial(_report_fault, screen)
    try:
        _refuse_unknown(given)
        options = make_parser(_Parser if screen.as_json else ArgumentParser).parse_args(given)
        if not options.command:
            make_parser().print_help()
            return 2
        return _run(options, screen)
    except KernelError as error:
        screen.complain(error)
        return 2 if isinstance(error, OF_THE_CALL) else 1
    except MemoryError as error:
        what = f"this machine has not enough memory: {error}"
        screen.complain(BadCommand(what, help="take smaller arrays"))
        return 2
    except SyntaxError as error:  # of the file that was loaded
        screen.note("".join(traceback.format_exception_only(error)))
        screen.tell_failure(error, [])
        return 1
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        # Python flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(options: Namespace, screen: Screen) -> int:
    run = COMMANDS[options.command].run
    if not screen.as_json and options.command not in PRODUCING:
        return run(options, screen)
    with redirect_stdout(sys.stderr):
        return run(options, screen)


class _Parser(ArgumentParser):
    """A parser whose complaints are errors like others."""

    def error(self, message: str) -> NoReturn:
        """Raise BadCommand."""
        raise BadCommand(
            f"`{self.prog}`: {message}", help=f"`{self.prog} --help` says what it takes"
        )


def make_parser(kind: type[ArgumentParser] = ArgumentParser) -> ArgumentParser:
    """Return the parser of the whole command line."""
    parser = kind(
        prog="astdsl",
        description="GPU kernels as plain Python functions.",
        epilog="Exit codes: 0 good, 1 the kernel is wrong, 2 the call is wrong.",
    )
    parser.add_argument("--version", action="version", version=f"astdsl {astdsl.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sentence = f"{command.help[0].upper()}{command.help[1:]}."
        command.add_arguments(commands.add_parser(name, help=command.help, description=sentence))
    return parser


def _refuse_unknown(given: Sequence[str]) -> None:
    """Refuse a first word that is no command, saying what to do."""
    name = given[0] if given else ""
    if name in LATER:
        raise BadCommand(f"`astdsl {name}` is not in this version", help=LATER[name])
    if name and not name.startswith("-") and name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"commands are {', '.join(COMMANDS)}"
        raise BadCommand(f"`astdsl` has no command `{name}`", help=hint)


def _report_fault(
    screen: Screen,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Report what nobody caught: the user's own exceptions with their frames, ours as ours."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(trace)]
    modules = [name.partition(".")[0] for name in names]
    whose = [module for module in modules if module not in LIBRARIES]
    if not whose or whose[-1] in OURS:
        sys.stderr.write("This is a fault of astdsl, not of your kernel; please report it:\n")
        traceback.print_exception(kind, error, trace)
        screen.tell_failure(error, [])
        return
    first = modules.index(next(module for module in whose if module not in OURS))
    frames = zip(traceback.extract_tb(trace)[first:], modules[first:], strict=True)
    users = [frame for frame, module in frames if module not in OURS]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(users)]
    sys.stderr.write("".join([*lines, *traceback.format_exception_only(error)]))
    screen.tell_failure(error, users)


if __name__ == "__main__":
    sys.exit(main())
