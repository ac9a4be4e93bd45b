"""From pipelines to what a block does step by step: launches, rings, phases, waits."""
