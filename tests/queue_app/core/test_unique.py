"""Rules for unique tasks that make no sense are refused."""

import pytest
from django.tasks.exceptions import InvalidTask

from queue_app import Unique, task
from queue_app.exceptions import InvalidTaskData


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"by": "order"}, r'by must be a list of names such as \["order_id"\]'),
        ({"states": ["quued"]}, "Did you mean 'queued'"),
        ({"states": ["completed"]}, "states may name blocked, executing, queued, scheduled"),
        ({"states": ["executing"], "on_conflict": "replace"}, "states may name"),
        ({"states": []}, "the rule never applies"),
        ({"within": 0}, "within must be more than 0"),
        ({"within": float("nan")}, "within must be more than 0"),
        ({"within": "1h"}, "within must be more than 0"),
        ({"on_conflict": "ignore"}, "on_conflict is one of keep, raise, replace, latest"),
        ({"debounce": 5, "on_conflict": "raise"}, "debounce replaces"),
        ({"max_wait": 5}, "give both"),
        ({"debounce": 5, "max_wait": 4}, "max_wait as the longer one"),
    ],
)
def test_a_rule_without_sense_is_refused(rule, message):
    with pytest.raises(InvalidTaskData, match=message):
        Unique(**rule)


def test_a_rule_names_parameters_of_the_function():
    def known(order: int) -> None: ...

    with pytest.raises(InvalidTask, match=r"by names 'ordr', which is no parameter.*Did you mean 'order'"):
        task(unique=Unique(by=["ordr"]))(known)
    with pytest.raises(InvalidTask, match=r"unique is True, None or queue_app\.Unique"):
        task(unique="yes")(known)
