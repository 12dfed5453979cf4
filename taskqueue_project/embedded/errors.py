"""The one error of this package."""


class EmbeddedError(Exception):
    """An embedded server cannot be started; the message says why and where its log is."""
