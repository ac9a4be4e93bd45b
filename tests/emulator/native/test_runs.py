"""Tests of when code is compiled, and of when it is executed by steps all the same."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl.emulator.in_flight import Use
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.native.host import host
from astdsl.emulator.native.runs import Budget, NativeCode
from astdsl.emulator.undefined import Undefined
from tests.emulator.native.machines import machine_of, program_of, run_of

pytestmark = pytest.mark.skipif(host() is None, reason="this processor has no compiled forms")

_UNDEFINED = Undefined(np.ones(8, np.uint32), np.ones(8, np.uint32))
_LINES = ["add.s32 %r0, %r1, %r2;", "xor.b32 %r1, %r0, %r3;", "shl.b32 %r2, %r1, %r0;"]


def test_a_run_is_left_to_its_steps_where_lanes_are_scattered() -> None:
    program = program_of(_LINES)
    scattered = Lanes.of(np.array([0, 2, 5]))
    assert not run_of(program, 3).execute(machine_of(program, 8, 0), scattered)


def test_a_run_is_left_to_its_steps_where_one_of_its_registers_is_undefined() -> None:
    program = program_of(_LINES)
    run, lanes = run_of(program, 3), Lanes.span(0, 8)
    for place in program.native.instructions[0].reads:
        machine = machine_of(program, 8, 0)
        machine.undefined[place] = _UNDEFINED
        assert not run.execute(machine, lanes)
    machine.undefined = {(64, 0): _UNDEFINED}
    assert run.execute(machine, lanes)


def test_a_run_is_left_to_its_steps_where_one_of_its_registers_is_in_flight() -> None:
    program = program_of(_LINES)
    machine, lanes = machine_of(program, 8, 0), Lanes.span(0, 8)
    place = program.native.instructions[2].writes[0]
    machine.in_flight.begin(Use(frozenset({place}), lanes, "product", 0, "wait"))
    assert not run_of(program, 3).execute(machine, lanes)


def test_a_predicate_that_guards_belongs_to_the_registers_of_a_run() -> None:
    program = program_of(["@%p3 add.s32 %r0, %r1, %r2;", *_LINES[1:]])
    machine = machine_of(program, 8, 0)
    machine.undefined[program.native.instructions[0].register_place("%p3")] = _UNDEFINED
    assert not run_of(program, 3).execute(machine, Lanes.span(0, 8))


def test_a_segment_is_compiled_when_steps_have_cost_as_much() -> None:
    program = program_of(_LINES)
    code = NativeCode(program.native.instructions, Budget(10, 1, instruction=100, start=0))
    assert code.pieces(0, 3, 40) is None
    found = code.pieces(0, 3, 50)
    assert found is not None
    assert [(each.start, each.stop) for each in found] == [(0, 3)]
    assert found[0].run is not None
    assert code.pieces(0, 3, 1) is found


def test_nothing_is_compiled_before_a_program_has_run_for_long() -> None:
    program = program_of(_LINES)
    code = NativeCode(program.native.instructions, Budget(10, 1, instruction=0, start=1000))
    assert code.pieces(0, 3, 100) is None
    assert code.pieces(0, 3, 1000) is not None


def test_instructions_without_forms_are_pieces_of_their_own() -> None:
    program = program_of([*_LINES, "popc.b32 %r0, %r1;", *_LINES, _LINES[0]])
    code = NativeCode(program.native.instructions, Budget(0, 0, 0, 0))
    found = code.pieces(0, 8, 1)
    assert found is not None
    assert [(e.start, e.stop, e.run is not None) for e in found] == [
        (0, 3, True), (3, 4, False), (4, 8, True),
    ]  # fmt: skip


def test_equal_forms_are_compiled_once() -> None:
    on = host()
    assert on is not None
    first, second = program_of([_LINES[0]]), program_of(["add.s32 %r3, %r0, %r1;"])
    forms = [on.form(program.native.instructions[0], 8) for program in (first, second)]
    assert forms[0] is forms[1]
    assert forms[0] is not None
    assert len(set(on.addresses([forms[0], forms[0]]))) == 1
