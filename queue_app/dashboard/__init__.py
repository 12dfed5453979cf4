"""What pages show: labels, lengths of time, and numbers over all queues. Knows no admin and no API."""
