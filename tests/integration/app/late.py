"""Tasks that no worker knows when it starts: nothing imports this module but who asks for them."""

from queue_app import task


@task
def found() -> str:
    """Say that it was found."""
    return "found"
