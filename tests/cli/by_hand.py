"""Kernels in explicit names that the command line's tests load, as a user's file."""

from astdsl import (
    SMEM,
    Barrier,
    In,
    Out,
    barrier_wait,
    commit_smem,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    f32,
    kernel,
    wait_smem_to_gmem,
)


@kernel(warpgroups=1)
def copied(x: In[f32, "64 128"], o: Out[f32, "64 128"]):
    buf, full = SMEM((64, 128), f32), Barrier()
    copy_gmem_to_smem(x.at[...], buf, full)
    barrier_wait(full)
    buf[...] = buf[...] + 1
    commit_smem()
    copy_smem_to_gmem(buf, o.at[...])
    wait_smem_to_gmem(0)


@kernel(warpgroups=1)
def not_fenced(x: In[f32, "64 128"], o: Out[f32, "64 128"]):
    buf, full = SMEM((64, 128), f32), Barrier()
    copy_gmem_to_smem(x.at[...], buf, full)
    barrier_wait(full)
    buf[...] = buf[...] + 1
    copy_smem_to_gmem(buf, o.at[...])
    wait_smem_to_gmem(0)


@kernel(warpgroups=1, check=False)
def not_checked(x: In[f32, "64 128"], o: Out[f32, "64 128"]):
    buf, full = SMEM((64, 128), f32), Barrier()
    copy_gmem_to_smem(x.at[...], buf, full)
    if x[0, 0] < 1e30:
        o[...] = buf[...]
    barrier_wait(full)
