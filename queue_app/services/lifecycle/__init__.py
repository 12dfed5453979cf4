"""The transitions of one task: claim, finish, retry, cancel, reprioritise, replay."""
