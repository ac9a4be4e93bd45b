"""Forms of loads, stores, atomics and what goes with addresses (PTX ISA 9.7.9, 9.7.13.5-13.7)."""

_BYTES = "b8/u8/s8/b16/u16/s16/b32/u32/s32/f32/b64/u64/s64/f64"
_WORDS = "b8/u8/s8/b16/u16/s16/b32/u32/s32/f32"
# Vectors by the types that they may have: 128 bits in all.
_VECTORS = (
    (f".{_BYTES}/b128", "t+"),
    (f".v2.{_BYTES}", "t+*2"),
    (f".v4.{_WORDS}", "t+*4"),
    (".v8.b8/u8/s8/b16/u16/s16", "t+*8"),
)
_WIDE = ((".v8.b32/u32/s32/f32", "t+*8"), (".v4.b64/u64/s64/f64", "t+*4"))
_SHARED = "shared/shared::cta/shared::cluster"
_PARAM = "param/param::entry/param::func"
_SCOPES = "cta/cluster/gpu/sys"
_L1 = "L1::evict_normal/L1::evict_first/L1::evict_last/L1::evict_unchanged/L1::no_allocate"
_L2 = "L2::evict_last/L2::evict_first/L2::evict_normal"
_PREFETCH = "L2::64B/L2::128B/L2::256B"
# Words of weak and strong loads and stores, with the spaces that they are for.
_LOADS = (
    f"ld.weak?.global/{_SHARED}/local/{_PARAM}/const?.ca/cg/cs/lu/cv?",
    f"ld.volatile.global/{_SHARED}?",
    f"ld.relaxed/acquire.{_SCOPES}.global/{_SHARED}?",
    "ld.weak?.global.ca/cg/cs?.nc",
)
_HINTED_LOADS = (
    f"ld.weak?.global?.{_L1}?.{_PREFETCH}?",
    f"ld.weak?.global?.ca/cg/cs/lu/cv?.{_PREFETCH}?",
    f"ld.relaxed/acquire.{_SCOPES}.global?.{_L1}?.{_PREFETCH}?",
    f"ld.volatile.global?.{_PREFETCH}?",
    f"ld.weak?.global.ca/cg/cs?.nc.{_PREFETCH}?",
    f"ld.weak?.global.nc.{_L1}?.{_PREFETCH}?",
)
_STORES = (
    f"st.weak?.global/{_SHARED}/local/param/param::func?.wb/cg/cs/wt?",
    f"st.volatile.global/{_SHARED}?",
    f"st.relaxed/release.{_SCOPES}.global/{_SHARED}?",
)
_HINTED_STORES = (
    f"st.weak?.global?.{_L1}?",
    f"st.relaxed/release.{_SCOPES}.global?.{_L1}?",
)


def _accesses() -> list[str]:
    lines = []
    for types, value in _VECTORS:
        lines += [f"{words}{types}; {value} mem" for words in _LOADS]
        for words in _HINTED_LOADS:
            lines.append(f"{words}{types}; {value} mem")
            lines.append(f"{words}.L2::cache_hint{types}; {value} mem b64")
        lines += [f"{words}{types}; mem {value}" for words in _STORES]
        for words in _HINTED_STORES:
            lines.append(f"{words}{types}; mem {value}")
            lines.append(f"{words}.L2::cache_hint{types}; mem {value} b64")
    for types, value in _WIDE:
        for words in _HINTED_LOADS:
            lines.append(f"{words}.{_L2}?{types}; {value} mem; sm_100")
            lines.append(f"{words}.{_L2}?.L2::cache_hint{types}; {value} mem b64; sm_100")
        lines.append(f"st.volatile.global?{types}; mem {value}; sm_100")
        for words in _HINTED_STORES:
            lines.append(f"{words}.{_L2}?{types}; mem {value}; sm_100")
            lines.append(f"{words}.{_L2}?.L2::cache_hint{types}; mem {value} b64; sm_100")
    return lines


_AT = f"global/{_SHARED}?"
_ORDERS = f"relaxed/acquire/release/acq_rel?.{_SCOPES}?"
# Operations of `atom` and `red`, with their types.
_UPDATES = (
    "add.u32/s32/u64/f32/f64", "min/max.u32/s32/u64/s64", "inc/dec.u32", "and/or/xor.b32/b64",
    "add.noftz.f16/f16x2/bf16/bf16x2",
)  # fmt: skip
_VECTOR_UPDATES = tuple(
    (f"{op}.v{n}.{types}", n)
    for op, types, lengths in (
        ("add", "f32", (2, 4)),
        ("add/min/max.noftz", "f16/bf16", (2, 4, 8)),
        ("add/min/max.noftz", "f16x2/bf16x2", (2, 4)),
    )
    for n in lengths
)


def _atomics() -> list[str]:
    lines = []
    for update in _UPDATES:
        lines.append(f"atom.{_ORDERS}.{_AT}.{update}; t mem t")
        lines.append(f"atom.{_ORDERS}.global?.L2::cache_hint.{update}; t mem t b64")
        orders = _ORDERS.replace("acquire/", "").replace("/acq_rel", "")
        lines.append(f"red.{orders}.{_AT}.{update}; mem t")
        lines.append(f"red.{orders}.global?.L2::cache_hint.{update}; mem t b64")
    for hint, more in ((_AT, ""), ("global?.L2::cache_hint", " b64")):
        lines.append(f"atom.{_ORDERS}.{hint}.exch.b32/b64/b128; t mem t{more}")
        lines.append(f"atom.{_ORDERS}.{hint}.cas.b16/b32/b64/b128; t mem t t{more}")
    for update, n in _VECTOR_UPDATES:
        for hint, more in (("", ""), (".L2::cache_hint", " b64")):
            lines.append(f"atom.{_ORDERS}.global?{hint}.{update}; t*{n} mem t*{n}{more}")
            lines.append(f"red.{_ORDERS}.global?{hint}.{update}; mem t*{n}{more}")
    return lines


_POLICY = f"{_L2}/L2::evict_unchanged.L2::evict_unchanged/L2::evict_first?"
_TOLD = "mbarrier::complete_tx::bytes"
FORMS = (
    "\n".join([*_accesses(), *_atomics()])
    + f"""
ld.mmio.relaxed.sys.global?.{_BYTES}/b128; t+ mem
st.mmio.relaxed.sys.global?.{_BYTES}/b128; mem t+
ldu.global?.b8/u8/s8/b16/u16/s16/b32/u32/s32/f32/b64/u64/s64/f64/b128; t+ mem
ldu.global?.v2.{_BYTES}; t+*2 mem
ldu.global?.v4.{_WORDS}; t+*4 mem
st.bulk.weak?.shared::cta?; mem b64 imm; sm_100
st.bulk.weak?.shared::cta?; mem b32 imm; sm_100
st.async.weak/cluster?.{_TOLD}.shared::cluster?.b32/b64/u32/u64/s32/s64/f32/f64; mem t mem
st.async.weak/cluster?.{_TOLD}.shared::cluster?.v2.b32/b64/u32/u64/s32/s64/f32/f64; mem t*2 mem
st.async.weak/cluster?.{_TOLD}.shared::cluster?.v4.b32/u32/s32/f32; mem t*4 mem
red.async.relaxed.cluster.{_TOLD}.shared::cluster?.inc/dec.u32; mem t mem
red.async.relaxed.cluster.{_TOLD}.shared::cluster?.min/max.u32/s32; mem t mem
red.async.relaxed.cluster.{_TOLD}.shared::cluster?.add.u32/s32/u64/s64; mem t mem
red.async.relaxed.cluster.{_TOLD}.shared::cluster?.and/or/xor.b32; mem t mem
cvta.to?.global/{_SHARED}/local/const/param/param::entry.u64; t t
isspacep.global/{_SHARED}/local/const/param/param::entry; pred b64
mapa.shared::cluster?.u32/u64; t any u32
getctarank.shared::cluster?.u32/u64; u32 any
prefetch.global/local?.L1/L2; mem
prefetch.global?.L2::evict_last/L2::evict_normal; mem
prefetch.const/param?.tensormap; mem
prefetchu.L1; mem
discard.global?.L2; mem line
applypriority.global?.L2::evict_normal; mem line
createpolicy.fractional.{_POLICY}.b64; b64 f32?
createpolicy.range.global?.{_POLICY}.b64; b64 mem b32 b32
createpolicy.cvt.L2.b64; b64 b64
"""
)
