"""The schedule of a whole kernel: its launches, and what each block does.

Invariant: the result means what the module meant, step by step in order; only when memory moves
has changed.
"""

from __future__ import annotations

from collections.abc import Callable

from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value, walk
from astdsl.ir.rewrite import replace_body, replace_fields, with_ops
from astdsl.lowering.buffers import plan_shared
from astdsl.lowering.needs import check_target
from astdsl.lowering.schedule import loads, products, rings, stores
from astdsl.lowering.schedule.assertions import hoist_assertions
from astdsl.lowering.schedule.block import BlockScheduler
from astdsl.lowering.schedule.branches import take_pipelines_out_of_branches
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.schedule.hazards import order_accesses
from astdsl.lowering.schedule.held import hold_outputs
from astdsl.lowering.schedule.launches import form_launches
from astdsl.lowering.schedule.masks import skip_full_masks
from astdsl.lowering.schedule.outputs import check_outputs, starting_unwritten
from astdsl.lowering.schedule.plain_copies import spell_out_copies
from astdsl.lowering.schedule.protocol import check_protocol
from astdsl.lowering.schedule.resets import drop_first_step_guards
from astdsl.lowering.schedule.revisits import separate_revisits
from astdsl.lowering.schedule.roles import choose_warpgroups
from astdsl.lowering.schedule.scaled_products import settle_scaled_products
from astdsl.lowering.schedule.splits import refuse_splits, split_pipelines
from astdsl.lowering.schedule.stages import check_stages
from astdsl.lowering.schedule.stream_k import settle_streams
from astdsl.lowering.schedule.streams import stream_large_tiles, stream_whole_kernel
from astdsl.lowering.schedule.view_windows import open_view_windows
from astdsl.lowering.schedule.warpgroups import check_warpgroups, keep_apart
from astdsl.lowering.target import Target
from astdsl.passes import eliminate_dead_code

# Importing a family registers its rules.
FAMILIES = (loads, products, rings, stores)


def schedule(module: Module, target: Target) -> Module:
    """Return the module with its pipelines turned into launches, phases, copies and waits."""
    check_target(module, target)
    check_outputs(module)
    settled = settle_streams(settle_scaled_products(spell_out_copies(module), target), target)
    formed = _formed(settled)
    # Streaming leaves the large loads behind without users.
    streamed = eliminate_dead_code(_each_launch(formed, stream_large_tiles))
    return _each_launch(streamed, lambda launch: _schedule_launch(launch, streamed, target))


def _formed(module: Module) -> Module:
    check_stages(module)
    opened = hoist_assertions(open_view_windows(module))
    if module.warpgroups:
        refuse_splits(module)
    else:
        opened = stream_whole_kernel(split_pipelines(take_pipelines_out_of_branches(opened)))
    return form_launches(opened)


def _each_launch(module: Module, change: Callable[[ops.Launch], ops.Launch]) -> Module:
    made = [change(op) if isinstance(op, ops.Launch) else op for op in module.body.ops]
    return replace_body(module, with_ops(module.body, made))


def _schedule_launch(launch: ops.Launch, module: Module, target: Target) -> ops.Launch:
    unwritten = starting_unwritten(module) - _written_before(launch, module)
    launch = drop_first_step_guards(hold_outputs(separate_revisits(launch), unwritten))
    scheduler = BlockScheduler(launch, target)
    with scheduler.writing(Maker(launch.span)) as maker:
        scheduler.run(launch.body.ops[:-1])
        if scheduler.stores_asynchronously:
            # The memory of a block is its own until its last thread has ended.
            maker.add_op(ops.WaitGroup(span=launch.span, pending=0, meets=False))
    body = Maker(launch.span)
    body.ops = [*scheduler.allocations.ops, *maker.ops]
    if launch.per_warpgroup:
        check_warpgroups(launch, target)
    warpgroups = choose_warpgroups(launch, target)
    program = skip_full_masks(body.block(args=launch.body.args))
    done = replace_fields(launch, body=program, warpgroups=warpgroups)
    if done.per_warpgroup:
        made = (v for op in scheduler.allocations.ops for v in op.results)
        done = keep_apart(done, made, target)
    ordered = order_accesses(done, module, _apart(done), target)
    if scheduler.trip_counts:
        # What does not fit is refused before its slots are run through, one by one.
        runners = ordered.warpgroups if ordered.per_warpgroup else 1
        plan_shared(ordered.body, target, runners)
        check_protocol(ordered.body, scheduler.trip_counts, runners)
    return ordered


def _written_before(launch: ops.Launch, module: Module) -> set[Value]:
    """Return the arrays that earlier launches write."""
    earlier = Block(ops=module.body.ops[: module.body.ops.index(launch)])
    return {op.ref for op in walk(earlier) if isinstance(op, ops.WRITERS)}


def _apart(launch: ops.Launch) -> list[Op]:
    """Return the stores to an array that the block touches in no other way, outside of loops."""
    uses: dict[object, list[Op]] = {}
    for op in walk(launch.body):
        if isinstance(op, ops.Window):
            uses.setdefault(op.ref, []).append(op)
    return [op for op in launch.body.ops if uses.get(getattr(op, "ref", None)) == [op]]
