"""The NVPTX back end: a builder of LLVM text, inline PTX, libdevice, and the assemblers."""
