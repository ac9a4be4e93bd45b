"""Assembling in this process, by nvJitLink: the way out when there is no ptxas.

Its limits (nvJitLink compiles relocatable code): ``setmaxnreg`` is ignored (message C7504), so
warpgroups cannot trade registers, and kernels that use tensor memory take more registers.
"""

from __future__ import annotations

from cuda.bindings import nvjitlink


class LinkFailed(Exception):
    """What nvJitLink says about PTX that it does not take."""


def link(ptx: str, architecture: str) -> tuple[bytes, str]:
    """Compile PTX to a cubin; give it and everything that nvJitLink said.

    Raises LinkFailed with the error log.
    """
    options = [f"-arch={architecture}", "-O3", "-verbose"]
    handle = nvjitlink.create(len(options), options)
    try:
        return _linked(handle, ptx.encode())
    except nvjitlink.nvJitLinkError as error:
        raise LinkFailed(_error_log(handle) or str(error)) from error
    finally:
        nvjitlink.destroy(handle)


def _linked(handle: int, ptx: bytes) -> tuple[bytes, str]:
    # nvJitLink wants the terminating zero.
    source = ptx + b"\0"
    nvjitlink.add_data(handle, nvjitlink.InputType.PTX, source, len(source), "kernel.ptx")
    nvjitlink.complete(handle)
    image = bytearray(nvjitlink.get_linked_cubin_size(handle))
    nvjitlink.get_linked_cubin(handle, image)
    log = bytearray(nvjitlink.get_info_log_size(handle))
    nvjitlink.get_info_log(handle, log)
    return bytes(image), _text(log)


def _error_log(handle: int) -> str:
    log = bytearray(nvjitlink.get_error_log_size(handle))
    nvjitlink.get_error_log(handle, log)
    return _text(log)


def _text(log: bytearray) -> str:
    return log.split(b"\0", 1)[0].decode(errors="replace")
