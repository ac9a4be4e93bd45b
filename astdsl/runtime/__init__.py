"""Arrays, argument classes, host arithmetic and devices: what stands between a call and a launch.

Invariant: nothing here knows how a kernel was written; it sees arrays, IR and launch plans.
"""
