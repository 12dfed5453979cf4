"""What is sent after a commit: updates of the index, lifecycle events, the transition log."""
