"""Forms of matrix products and of what goes with them (PTX ISA 9.7.14, 9.7.15, 9.7.16)."""

_WG = "wgmma.mma_async.sync.aligned"
_WG_N = range(8, 257, 8)
# Products of integers have fewer shapes.
_WG_INTEGER_N = (8, 16, 24, *range(32, 257, 16))


def _wg_shapes(k: int, ns: range | tuple[int, ...] = _WG_N) -> str:
    return "/".join(f"m64n{n}k{k}" for n in ns)


def _wgmma() -> list[str]:
    lines = []
    for results, kind in (("f16/f32", "f16"), ("f32", "bf16")):
        syntax = f"{_WG}.{_wg_shapes(16)}.{results}.{kind}.{kind}"
        lines.append(f"{syntax}; b32* b64 b64 pred imm imm imm imm; sm_90a")
        lines.append(f"{syntax}; b32* b32*4 b64 pred imm imm imm; sm_90a")
    for a in ("b64", "b32*4"):
        for k, types in ((8, "f32.tf32.tf32"), (32, "f16/f32.e4m3/e5m2.e4m3/e5m2")):
            lines.append(f"{_WG}.{_wg_shapes(k)}.{types}; b32* {a} b64 pred imm imm; sm_90a")
        shapes = _wg_shapes(32, _WG_INTEGER_N)
        lines.append(f"{_WG}.{shapes}.satfinite?.s32.s8/u8.s8/u8; b32* {a} b64 pred; sm_90a")
    return lines


# Shapes and types of D, A, B and C.
_PRODUCTS = (
    "m16n8k8/m16n8k16.row.col.f16/f32.f16.f16.f16/f32",
    "m8n8k4.row/col.row/col.f16/f32.f16.f16.f16/f32",
    "m16n8k8/m16n8k16.row.col.f32.bf16.bf16.f32",
    "m16n8k4/m16n8k8.row.col.f32.tf32.tf32.f32",
    "m16n8k16/m16n8k32.row.col.f16/f32.e4m3/e5m2.e4m3/e5m2.f16/f32",
    "m8n8k4/m16n8k4/m16n8k8/m16n8k16.row.col.rn/rz/rm/rp?.f64.f64.f64.f64",
    "m8n8k16/m16n8k16/m16n8k32.row.col.satfinite?.s32.u8/s8.u8/s8.s32",
    "m8n8k32/m16n8k32/m16n8k64.row.col.satfinite?.s32.u4/s4.u4/s4.s32",
    "m8n8k128/m16n8k128/m16n8k256.row.col.s32.b1.b1.s32.xor/and.popc",
)
_GROUP = "cta_group::1/cta_group::2"
_COLLECTOR = "/".join(f"collector::a::{word}" for word in ("fill", "use", "lastuse", "discard"))
_SPARSE_OR_NARROW = (
    "collector::{0}::fill/collector::{0}::use/collector::{0}::lastuse/collector::{0}::discard"
)
_KINDS = "kind::f16/kind::tf32/kind::f8f6f4/kind::i8"
_SCALED = (
    "kind::mxf8f6f4.block_scale.scale_vec::1X/block32?",
    "kind::mxf4.block_scale.scale_vec::2X/block32?",
    "kind::mxf4nvf4.block_scale.scale_vec::2X/scale_vec::4X/block16/block32",
)


def _tensor_products() -> list[str]:
    base = f"tcgen05.mma.{_GROUP}"
    lines = []
    for mask in ("", " b32*4", " b32*8"):
        kinds = f"{base}.{_KINDS}.ashift?.{_COLLECTOR}?"
        lines.append(f"{kinds}; mem any b64 b32{mask} pred imm?; family")
        sparse = kinds.replace("mma", "mma.sp", 1)
        lines.append(f"{sparse}; mem any b64 mem b32{mask} pred imm?; family")
    for scaled in _SCALED:
        words = f"{base}.{scaled}.{_COLLECTOR}?"
        lines.append(f"{words}; mem any b64 b32 mem mem pred; family")
        sparse = words.replace("mma", "mma.sp", 1)
        lines.append(f"{sparse}; mem any b64 mem b32 mem mem pred; family")
    for b in range(4):
        collector = _SPARSE_OR_NARROW.format(f"b{b}")
        narrow = f"tcgen05.mma.sp?.ws.cta_group::1.{_KINDS}.{collector}?"
        lines.append(f"{narrow}; mem any b64 any any any? any?; family")
    return lines


_TENSOR_SHAPES = "16x64b/16x128b/16x256b/32x32b"
_TIMES = "x1/x2/x4/x8/x16/x32/x64/x128"
_PACKED = "b8x16.b6x16_p32/b4x16_p64"
_DESTINATIONS = (
    "128x256b", "128x128b", "64x128b.warpx2::02_13/warpx2::01_23", "32x128b.warpx4", "4x256b",
)  # fmt: skip


def _tensor_copies() -> list[str]:
    base = f"tcgen05.cp.{_GROUP}"
    plain = [f"{base}.{shape}; mem b64; family" for shape in _DESTINATIONS]
    return plain + [f"{base}.{shape}.{_PACKED}; mem b64; family" for shape in _DESTINATIONS]


_ARRIVE = f"tcgen05.commit.{_GROUP}.mbarrier::arrive::one.shared::cluster?"
FORMS = (
    "\n".join(
        [
            *_wgmma(),
            *_tensor_products(),
            *_tensor_copies(),
            *(f"mma.sync.aligned.{product}; any any any any" for product in _PRODUCTS),
        ]
    )
    + f"""
wgmma.fence.sync.aligned?; ; sm_90a
wgmma.commit_group.sync.aligned?; ; sm_90a
wgmma.wait_group.sync.aligned?; imm; sm_90a
ldmatrix.sync.aligned.m8n8.x1.trans?.shared/shared::cta?.b16; b32*1 mem
ldmatrix.sync.aligned.m8n8.x2.trans?.shared/shared::cta?.b16; b32*2 mem
ldmatrix.sync.aligned.m8n8.x4.trans?.shared/shared::cta?.b16; b32*4 mem
ldmatrix.sync.aligned.m16n16.x1.trans.shared/shared::cta?.b8; b32*2 mem; family
ldmatrix.sync.aligned.m16n16.x2.trans.shared/shared::cta?.b8; b32*4 mem; family
ldmatrix.sync.aligned.m16n16.x1.trans.shared/shared::cta?.{_PACKED}; b32*2 mem; family
ldmatrix.sync.aligned.m16n16.x2.trans.shared/shared::cta?.{_PACKED}; b32*4 mem; family
ldmatrix.sync.aligned.m8n16.x1.shared/shared::cta?.{_PACKED}; b32*1 mem; family
ldmatrix.sync.aligned.m8n16.x2.shared/shared::cta?.{_PACKED}; b32*2 mem; family
ldmatrix.sync.aligned.m8n16.x4.shared/shared::cta?.{_PACKED}; b32*4 mem; family
stmatrix.sync.aligned.m8n8.x1.trans?.shared/shared::cta?.b16; mem b32*1
stmatrix.sync.aligned.m8n8.x2.trans?.shared/shared::cta?.b16; mem b32*2
stmatrix.sync.aligned.m8n8.x4.trans?.shared/shared::cta?.b16; mem b32*4
stmatrix.sync.aligned.m16n8.x1.trans.shared/shared::cta?.b8; mem b32*1; family
stmatrix.sync.aligned.m16n8.x2.trans.shared/shared::cta?.b8; mem b32*2; family
stmatrix.sync.aligned.m16n8.x4.trans.shared/shared::cta?.b8; mem b32*4; family
movmatrix.sync.aligned.m8n8.trans.b16; b32 b32
tcgen05.alloc.{_GROUP}.sync.aligned.shared::cta?.b32; mem u32; family
tcgen05.dealloc.{_GROUP}.sync.aligned.b32; b32 u32; family
tcgen05.relinquish_alloc_permit.{_GROUP}.sync.aligned; ; family
tcgen05.wait::ld/wait::st.sync.aligned; ; family
tcgen05.fence::before_thread_sync/fence::after_thread_sync; ; family
{_ARRIVE}.b64; mem; family
{_ARRIVE}.multicast::cluster.b64; mem b16; family
tcgen05.ld.sync.aligned.{_TENSOR_SHAPES}.{_TIMES}.pack::16b?.b32; b32* mem; family
tcgen05.ld.sync.aligned.16x32bx2.{_TIMES}.pack::16b?.b32; b32* mem imm; family
tcgen05.st.sync.aligned.{_TENSOR_SHAPES}.{_TIMES}.unpack::16b?.b32; mem b32*; family
tcgen05.st.sync.aligned.16x32bx2.{_TIMES}.unpack::16b?.b32; mem imm b32*; family
tcgen05.shift.{_GROUP}.down; mem; family
"""
)
