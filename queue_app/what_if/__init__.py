"""What if: run recorded or invented tasks through the real scripts, in simulated time, under other policies."""
