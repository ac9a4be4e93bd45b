"""Forms of control, barriers, fences and collectives of a warp (PTX ISA 9.7.12, 9.7.13)."""

_SHARED = "shared/shared::cta/shared::cluster"
_OWN = "shared/shared::cta"
_BOUND = "sync_restrict::shared::{}"


def _waits() -> list[str]:
    lines = []
    for words in ("test_wait", "try_wait"):
        for orders in ("", ".relaxed/acquire.cta/cluster"):
            most = " u32?" if words == "try_wait" else ""
            base = f"mbarrier.{words}"
            lines.append(f"{base}{orders}.{_OWN}?.b64; pred mem b64{most}")
            lines.append(f"{base}.parity{orders}.{_OWN}?.b64; pred mem u32{most}")
    return lines


def _arrivals() -> list[str]:
    lines = []
    for orders in ("", ".release/relaxed.cta/cluster"):
        for base in (f"mbarrier.arrive{orders}", f"mbarrier.arrive_drop{orders}"):
            lines.append(f"{base}.{_OWN}?.b64; b64 mem u32?")
            lines.append(f"{base}.{_SHARED}?.b64; sink mem u32?")
            lines.append(f"{base}.expect_tx.{_OWN}?.b64; b64 mem u32")
            lines.append(f"{base}.expect_tx.{_SHARED}?.b64; sink mem u32")
    for base in ("mbarrier.arrive", "mbarrier.arrive_drop"):
        for orders in ("", ".release.cta"):
            lines.append(f"{base}{orders}.noComplete.{_OWN}?.b64; b64 mem u32")
            lines.append(f"{base}{orders}.noComplete.{_OWN}?.b64; sink mem u32")
    return lines


FORMS = (
    "\n".join([*_waits(), *_arrivals()])
    + f"""
bra.uni?; any
brx.idx.uni?; u32 any
call.uni?; any any? any? any?
ret.uni?;
exit;
trap;
brkpt;
pmevent.mask?; imm
nanosleep.u32; t
bar.cta?.sync; u32 u32?
bar.cta?.arrive; u32 u32
bar.cta?.red.popc.u32; t u32 pred
bar.cta?.red.popc.u32; t u32 u32 pred
bar.cta?.red.and/or.pred; t u32 pred
bar.cta?.red.and/or.pred; t u32 u32 pred
bar.warp.sync; b32
barrier.cta?.sync.aligned?; u32 u32?
barrier.cta?.arrive.aligned?; u32 u32
barrier.cta?.red.popc.aligned?.u32; t u32 pred
barrier.cta?.red.popc.aligned?.u32; t u32 u32 pred
barrier.cta?.red.and/or.aligned?.pred; t u32 pred
barrier.cta?.red.and/or.aligned?.pred; t u32 u32 pred
barrier.cluster.arrive.release/relaxed?.aligned?;
barrier.cluster.wait.acquire?.aligned?;
membar.cta/gl/sys;
fence.sc/acq_rel/acquire/release?.cta/cluster/gpu/sys;
fence.acquire.{_BOUND.format("cluster")}.cluster;
fence.release.{_BOUND.format("cta")}.cluster;
fence.proxy.alias;
fence.proxy.async.global/shared::cta/shared::cluster?;
fence.proxy.async::generic.acquire.{_BOUND.format("cluster")}.cluster;
fence.proxy.async::generic.release.{_BOUND.format("cta")}.cluster;
fence.proxy.tensormap::generic.release.cta/cluster/gpu/sys;
fence.proxy.tensormap::generic.acquire.cta/cluster/gpu/sys; mem line
fence.mbarrier_init.release.cluster;
vote.sync.all/any/uni.pred; t pred b32
vote.sync.ballot.b32; t pred b32
match.any.sync.b32/b64; b32 t b32
match.all.sync.b32/b64; b32 t b32
match.all.sync.b32/b64; b32|pred t b32
activemask.b32; t
redux.sync.add/min/max.u32/s32; t t b32
redux.sync.and/or/xor.b32; t t b32
redux.sync.min/max.abs?.NaN?.f32; t t b32; family
elect.sync; b32|pred b32
shfl.sync.up/down/bfly/idx.b32; t t b32 b32 b32
shfl.sync.up/down/bfly/idx.b32; t|pred t b32 b32 b32
griddepcontrol.launch_dependents/wait;
setmaxnreg.inc/dec.sync.aligned.u32/s32; imm; own
mbarrier.init.{_OWN}?.b64; mem u32
mbarrier.inval.{_OWN}?.b64; mem
mbarrier.expect_tx/complete_tx.{_SHARED}?.b64; mem u32
mbarrier.expect_tx/complete_tx.relaxed.cta/cluster.{_SHARED}?.b64; mem u32
mbarrier.pending_count.b64; u32 b64
"""
)
