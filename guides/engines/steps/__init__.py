"""Steps that engines share: updates of blocks, EM's surrogate, starts, climbs."""
