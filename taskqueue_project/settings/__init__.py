"""Settings of the reference project: `dev` (default), `production`, `test`; all extend `base`."""
