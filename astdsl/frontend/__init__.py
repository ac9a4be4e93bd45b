"""Python functions in, IR out: the source is rewritten, and Python runs the rewritten function."""
