"""What staff configure: limits, pauses, queues, API keys; and the audit trail of their changes."""
