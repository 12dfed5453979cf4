"""Workers: how they register and end, their tokens, and the protocol of those that only speak HTTP."""
