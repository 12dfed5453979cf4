"""Loading the scripts: each has all functions that it uses, and no others."""

import re

import pytest
import redis

from queue_app.index import scripts
from tests.support.index_state import client_of
from tests.support.leases import restore
from tests.support.scene import Scene


@pytest.mark.parametrize("name", ["claim", "release", "push", "generation", "lock"])
def test_a_script_holds_the_shared_functions_that_it_uses_and_no_others(name: str):
    text = re.sub(r"--.*", "", scripts.source(name))
    defined = re.findall(r"^local function (\w+)", text, re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert [function for function in defined if len(re.findall(rf"\b{function}\b", text)) < 2] == []
    assert "--!" not in scripts.source(name)


#: Local variables that Lua allows at the top of a script, and those that must be left for the next change.
MOST, SPARE = 200, 5


def locals_left(client, text: str) -> int:
    """Return how many more local variables the server's compiler would accept at the top of a script."""
    low, high = -1, MOST
    while low < high:
        middle = (low + high + 1) // 2
        try:
            client.script_load("".join(f"local spare_{number}\n" for number in range(middle)) + text)
        except redis.ResponseError as error:
            if "local variables" not in str(error):
                raise
            high = middle - 1
        else:
            low = middle
    return low


def test_every_script_compiles_and_none_is_close_to_the_limit_of_local_variables(scene: Scene):
    """A script that reaches the limit would be refused at its first call, and the index be built anew for ever."""
    left = {name: locals_left(client_of(scene.index), scripts.source(name)) for name in scripts.NAMES}
    fullest = sorted(left.items(), key=lambda item: item[1])[:5]
    print("local variables left:", ", ".join(f"{name} {count}" for name, count in fullest))
    assert [each for each in fullest if each[1] < SPARE] == []


@pytest.mark.parametrize("how", ["claimed", "restored"])
def test_leases_are_a_table_however_few_they_are(scene: Scene, how: str):
    """A hash of up to some hundred entries would be read through for each task that is looked up in it."""
    scene.push(scene.task("x"), scene.task("y", 1))
    if how == "claimed":
        assert scene.claim(scene.worker(), 1) == "x"
    else:
        task = scene.task("z")
        restore(scene.index, [(task.id, task.lane)])
    client, leases = client_of(scene.index), scene.index.keys.leases
    assert client.object("encoding", leases) == b"hashtable"
    assert client.hlen(leases) == 1
    scene.check()
