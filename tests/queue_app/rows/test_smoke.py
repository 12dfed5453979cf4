from tests.support.engine import done, put, take, status
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild


def test_a_task(rows, index, hand_of):
    assert rebuild() is not None
    task = put()
    found = take(hand_of())
    assert [each.id for each in found] == [task]
    finish([done(each) for each in found])
    assert status(task) == "completed"
