"""Forms of asynchronous copies and of what goes with them (PTX ISA 9.7.9.25-9.7.9.28)."""

_TOLD = "mbarrier::complete_tx::bytes"
_PREFETCH = "L2::64B/L2::128B/L2::256B"
_RANKS = "1d/2d/3d/4d/5d"


def _hinted(syntax: str, operands: str, needs: str = "") -> list[str]:
    """Return a form without and with a cache policy, which is the last operand."""
    suffix = f"; {needs}" if needs else ""
    return [
        f"{syntax}; {operands}{suffix}",
        f"{syntax}.L2::cache_hint; {operands} b64{suffix}",
    ]


def _lines() -> list[str]:
    lines = []
    for words in ("ca", "cg"):
        base = f"cp.async.{words}.shared/shared::cta.global.{_PREFETCH}?"
        for more in ("", " u32", " pred"):
            lines += _hinted(base, f"mem mem imm{more}")
    for many, mask in (("", ""), (".multicast::cluster", " b16")):
        lines += _hinted(
            f"cp.async.bulk.shared::cluster.global.{_TOLD}{many}", f"mem mem u32 mem{mask}"
        )
        load = f"cp.async.bulk.tensor.{{}}.shared::cluster.global{{}}.{_TOLD}{many}"
        lines += _hinted(load.format(_RANKS, ".tile?"), f"mem mem mem{mask}")
        lines += _hinted(load.format("3d/4d/5d", ".im2col"), f"mem mem mem any{mask}")
        for more, offsets, ranks in (
            (".tile?", "", _RANKS),
            (".im2col", " any", "3d/4d/5d"),
            (".im2col::w/im2col::w::128", " any", "3d/4d/5d"),
            (".tile::gather4", "", "2d"),
        ):
            paired = load.format(ranks, more).replace(_TOLD, f"{_TOLD}.cta_group::1/cta_group::2?")
            lines += _hinted(paired, f"mem mem mem{offsets}{mask}", "family")
    lines += _hinted(f"cp.async.bulk.shared::cta.global.{_TOLD}", "mem mem u32 mem")
    own = f"cp.async.bulk.tensor.{{}}.shared::cta.global{{}}.{_TOLD}{{}}"
    pair = ".cta_group::1/cta_group::2?"
    lines += _hinted(own.format(_RANKS, ".tile?", ""), "mem mem mem")
    lines += _hinted(own.format("3d/4d/5d", ".im2col", ""), "mem mem mem any")
    lines += _hinted(own.format(_RANKS, ".tile?", pair), "mem mem mem", "family")
    lines += _hinted(own.format("2d", ".tile::gather4", pair), "mem mem mem", "sm_100")
    lines += _hinted(
        own.format("3d/4d/5d", ".im2col/im2col::w/im2col::w::128", pair),
        "mem mem mem any",
        "sm_100",
    )
    lines.append(f"cp.async.bulk.shared::cluster.shared::cta.{_TOLD}; mem mem u32 mem")
    lines += _hinted("cp.async.bulk.global.shared::cta.bulk_group", "mem mem u32")
    lines.append("cp.async.bulk.global.shared::cta.bulk_group.cp_mask; mem mem u32 b16; sm_100")
    lines.append(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask; "
        "mem mem u32 b64 b16; sm_100"
    )
    lines += _hinted("cp.async.bulk.prefetch.L2.global", "mem u32")
    lines += _hinted(f"cp.async.bulk.prefetch.tensor.{_RANKS}.L2.global.tile?", "mem")
    lines += _hinted("cp.async.bulk.prefetch.tensor.3d/4d/5d.L2.global.im2col", "mem any")
    lines += _hinted("cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4", "mem", "family")
    store = "cp.async.bulk.tensor.{}.global.shared::cta{}.bulk_group"
    lines += _hinted(store.format(_RANKS, ".tile?"), "mem mem")
    lines += _hinted(store.format("3d/4d/5d", ".im2col_no_offs"), "mem mem")
    lines += _hinted(store.format("2d", ".tile::scatter4"), "mem mem", "family")
    reduction = "cp.reduce.async.bulk.tensor.{}.global.shared::cta.{}{}.bulk_group"
    operations = "add/min/max/inc/dec/and/or/xor"
    lines += _hinted(reduction.format(_RANKS, operations, ".tile?"), "mem mem")
    lines += _hinted(reduction.format("3d/4d/5d", operations, ".im2col_no_offs"), "mem mem")
    return lines


def _reductions() -> list[str]:
    lines = [
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{_TOLD}.{what}; mem mem u32 mem"
        for what in ("and/or/xor.b32", "add.u32/s32/u64", "min/max.u32/s32", "inc/dec.u32")
    ]
    for what in (
        "and/or/xor.b32/b64", "add.u32/s32/u64/f32/f64", "min/max.u32/s32/u64/s64", "inc/dec.u32",
        "add.noftz.f16/bf16", "min/max.f16/bf16",
    ):  # fmt: skip
        base = "cp.reduce.async.bulk.global.shared::cta.bulk_group"
        lines.append(f"{base}.{what}; mem mem u32")
        lines.append(f"{base}.L2::cache_hint.{what}; mem mem u32 b64")
    return lines


_CANCEL = f"clusterlaunchcontrol.try_cancel.async.shared::cta?.{_TOLD}"
_ASK = "clusterlaunchcontrol.query_cancel"
_FENCED = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release"
_FIELD = "tensormap.replace.tile"
_SPACE = "global/shared::cta?"
FORMS = (
    "\n".join([*_lines(), *_reductions()])
    + f"""
cp.async.commit_group;
cp.async.wait_all;
cp.async.wait_group; imm
cp.async.mbarrier.arrive.noinc?.shared/shared::cta?.b64; mem
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read?; imm
{_CANCEL}.b128; mem mem; sm_100
{_CANCEL}.multicast::cluster::all.b128; mem mem; family
{_ASK}.is_canceled.pred.b128; pred b128; sm_100
{_ASK}.get_first_ctaid::x/get_first_ctaid::y/get_first_ctaid::z.b32.b128; b32 b128; sm_100
{_ASK}.get_first_ctaid.v4.b32.b128; b32*4 b128; sm_100
{_FIELD}.global_address.{_SPACE}.b1024.b64; mem b64; own
{_FIELD}.rank.{_SPACE}.b1024.b32; mem b32; own
{_FIELD}.box_dim/global_dim/element_stride.{_SPACE}.b1024.b32; mem imm b32; own
{_FIELD}.global_stride.{_SPACE}.b1024.b64; mem imm b64; own
{_FIELD}.elemtype/interleave_layout/swizzle_mode/fill_mode.{_SPACE}.b1024.b32; mem imm; own
{_FIELD}.swizzle_atomicity.{_SPACE}.b1024.b32; mem imm; family
{_FENCED}.cta/cluster/gpu/sys.sync.aligned; mem mem line
"""
)
