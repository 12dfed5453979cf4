"""Both ways to propose: tests of services whose rows the claims must treat alike."""

from collections.abc import Iterator

import pytest

from queue_app import conf
from queue_app.index import Index, get_index
from tests.queue_app.services.conftest import transactional_db  # noqa: F401 - used by name


@pytest.fixture(params=[conf.REDIS, conf.ROWS])
def index(request, settings) -> Iterator[Index]:
    """The index of this process, of each way."""
    settings.TASKQUEUE = settings.TASKQUEUE | {"INDEX": request.param}
    return get_index()


@pytest.fixture
def hand_of(index):
    import uuid
    from queue_app.index import Profile
    from tests.support.scene import Hand
    return lambda kinds="a": Hand(uuid.uuid4(), Profile.of((), kinds.split(), ()))
