"""From typed IR to PTX: windows, schedules, layouts and the NVPTX back end.

It imports `astdsl.ir` and what lies below it, never the front end, the runtime or the emulator.
"""
