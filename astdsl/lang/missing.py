"""Names that the language has and this version has not: each refuses its use, saying what to do.

Invariant: a name is in `MISSING` or works, never both.
"""

from __future__ import annotations

from typing import Any, NoReturn

from astdsl.errors import UnsupportedFeature
from astdsl.lang.tracing import fault

_PRODUCT = "`a @ b` in a pipeline runs on the tensor core"
_COPY = "`copy_gmem_to_smem` and `copy_smem_to_gmem` copy windows; `pipeline` does by itself"
_GRID = "the outermost `pipeline` or `parallel` gives the indices"
_LOOP = "`with pipeline(...)` is the same loop"
_SEMAPHORE = "`atomic_add` on `GMEM` counts; launches of a kernel run one after the other"
_STEALING = '`nd_loop(grid, collective_axes="sm")` shares the steps among blocks'
_LAUNCHES = "each outermost `pipeline` is a launch, and sees all that the ones before have written"
_ONE_GPU = "a kernel runs on one GPU: pass it the arrays of each in turn"

MISSING = {
    **dict.fromkeys(["mma"], _PRODUCT),
    **dict.fromkeys(["async_store_smem", "cluster_ref"], _COPY),
    "cluster_id": _GRID,
    **dict.fromkeys(["dynamic_scheduling_loop"], _LOOP),
    **dict.fromkeys(["emit_pipeline_warp_specialized"], _LOOP),
    "ClusterBarrier": "`Barrier` is for one block",
    **dict.fromkeys(["MemorySpace", "REGS"], "`GMEM`, `SMEM`, `TMEM` and `ACC` allocate"),
    "CopyPartition": _COPY,
    **dict.fromkeys(
        ["SemaphoreSignal", "SemaphoreType", "semaphore_read", "semaphore_signal"], _SEMAPHORE
    ),
    **dict.fromkeys(["semaphore_signal_parallel", "semaphore_wait"], _SEMAPHORE),
    **dict.fromkeys(["TryClusterCancelResult", "try_cluster_cancel"], _STEALING),
    "query_cluster_cancel": _STEALING,
    **dict.fromkeys(["griddepcontrol_wait", "griddepcontrol_launch_dependents"], _LAUNCHES),
    **dict.fromkeys(["multimem_store", "multimem_load_reduce"], _ONE_GPU),
    **dict.fromkeys(["multicast_ref", "remote_ref"], _ONE_GPU),
    "async_copy_smem_to_tmem": "`async_store_tmem(ref, buf[...])` stores it by way of registers",
    "async_copy_sparse_metadata_to_tmem": _PRODUCT,
    "as_torch_kernel": "a kernel takes tensors of PyTorch as they are, on their current stream",
    "region": "`astdsl explain` and `dump --schedule` show the phases",
}


class NotYet:
    """What stands under a name of `MISSING`: any use of it is refused."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise fault(
            UnsupportedFeature, f"`{self._name}` is not in this version", help=MISSING[self._name]
        )

    __call__ = __getitem__ = __iter__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __repr__(self) -> str:
        return f"<{self._name}: not in this version>"
