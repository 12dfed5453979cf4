"""The packed format in which queued tasks are sent to the index."""

import struct

from queue_app.core.ids import uuid7
from queue_app.core.records import Entry
from queue_app.index.notifier import pack

LANE, OTHER = "q\x1fapp.task\x1f", "other\x1fapp.task\x1f"


def test_lane_by_lane():
    one, two, other, late = (
        Entry(LANE, 2e13, uuid7()),
        Entry(LANE, 2e13, uuid7()),
        Entry(OTHER, 1.5, uuid7()),
        Entry(OTHER, 2.5, uuid7()),
    )
    assert pack([one, other, two, late]) == [
        *(LANE, one.id.bytes + two.id.bytes, struct.pack(">d", 2e13)),  # one place for both
        *(OTHER, other.id.bytes + late.id.bytes, struct.pack(">2d", 1.5, 2.5)),
    ]
