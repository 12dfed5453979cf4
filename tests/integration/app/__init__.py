"""An app whose tasks leave traces outside the servers, for tests with several processes."""
