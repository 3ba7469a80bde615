"""A table is a mapping that behaves like a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support import SMALL

import braid

KEYS = st.text("abc", max_size=2)
VALUES = st.integers(-3, 3)


def outcome(call: Callable[[], Any]) -> Any:
    """Returns the result of a call, or the class of the exception that it raises."""
    try:
        return call()
    except Exception as error:
        return type(error)


class AsADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.db = braid.in_memory(**SMALL)
        self.table = self.db.open_table("t", key=str, value=int)
        self.model: dict[str, int] = {}

    def teardown(self) -> None:
        self.db.close()

    def same(self, call: Callable[[MutableMapping[str, int]], Any]) -> None:
        assert outcome(lambda: call(self.table)) == outcome(lambda: call(self.model))

    @rule(key=KEYS)
    def get_item(self, key: str) -> None:
        self.same(lambda m: m[key])
        self.same(lambda m: m.get(key))
        self.same(lambda m: m.get(key, "default"))
        self.same(lambda m: key in m)
        self.same(lambda m: key in m.keys())

    @rule(key=KEYS, value=VALUES)
    def contains(self, key: str, value: int) -> None:
        self.same(lambda m: value in m.values())
        self.same(lambda m: (key, value) in m.items())

    @rule(key=KEYS, value=VALUES)
    def set_item(self, key: str, value: int) -> None:
        self.same(lambda m: m.__setitem__(key, value))

    @rule(key=KEYS)
    def del_item(self, key: str) -> None:
        self.same(lambda m: m.__delitem__(key))

    @rule(key=KEYS)
    def pop(self, key: str) -> None:
        self.same(lambda m: m.pop(key))

    @rule(key=KEYS)
    def pop_default(self, key: str) -> None:
        self.same(lambda m: m.pop(key, None))

    @rule(key=KEYS, value=VALUES)
    def setdefault(self, key: str, value: int) -> None:
        self.same(lambda m: m.setdefault(key, value))

    @rule()
    def popitem(self) -> None:
        if not self.model:
            assert outcome(self.table.popitem) is KeyError
            return
        last = max(self.model)
        assert self.table.popitem() == (last, self.model.pop(last))

    @rule(entries=st.dictionaries(KEYS, VALUES))
    def update(self, entries: dict[str, int]) -> None:
        self.same(lambda m: m.update(entries))

    @rule(entries=st.lists(st.tuples(KEYS, VALUES)), value=VALUES)
    def update_pairs(self, entries: list[tuple[str, int]], value: int) -> None:
        self.same(lambda m: m.update(iter(entries), abc=value))

    @rule()
    def clear(self) -> None:
        self.same(lambda m: m.clear())

    @invariant()
    def equal(self) -> None:
        assert self.table == self.model
        assert self.model == self.table
        assert not self.table != self.model
        assert len(self.table) == len(self.model)
        assert bool(self.table) == bool(self.model)
        ordered = dict(sorted(self.model.items()))
        assert list(self.table) == list(ordered)
        assert list(self.table.keys()) == list(ordered)
        assert list(self.table.values()) == list(ordered.values())
        assert list(self.table.items()) == list(ordered.items())
        assert list(reversed(self.table.items())) == list(reversed(ordered.items()))
        assert list(reversed(self.table.keys())) == list(reversed(ordered))
        assert list(reversed(self.table.values())) == list(reversed(ordered.values()))
        assert self.table.keys() == self.model.keys()
        assert self.table.items() == self.model.items()


TestAsADict = AsADict.TestCase
TestAsADict.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_is_a_mapping(db: braid.Database) -> None:
    table = db.open_table("t")
    assert isinstance(table, MutableMapping) and isinstance(table, Mapping)
    assert table != 5
    with pytest.raises(TypeError, match="unhashable"):
        hash(table)


def test_an_update_is_one_transaction(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    commits = db.stats().commits
    table.update({"a": 1, "b": 2})
    assert db.stats().commits == commits + 1
    wrong: Any = [("c", 3), ("d", "four")]
    with pytest.raises(TypeError):
        table.update(wrong)
    with pytest.raises(ValueError, match="entry 0 has 1 items"):
        table.update([("c",)])  # type: ignore[list-item]
    assert dict(table) == {"a": 1, "b": 2}


def test_an_iteration_sees_one_state(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    table.update((i, 0) for i in range(100))
    seen = []
    for key in table:
        del table[key]
        table[key + 1000] = 0
        seen.append(key)
    assert seen == list(range(100))
    assert list(table) == list(range(1000, 1100))


def test_each_write_is_durable_as_the_database_says() -> None:
    with braid.in_memory(**SMALL) as db:
        table = db.open_table("t")
        flushes = db.stats().log.flushes
        table[b"a"] = b""
        assert db.stats().log.flushes > flushes
    with braid.in_memory(durability="none", **SMALL) as db:
        table = db.open_table("t")
        table[b"a"] = b""
        db.sync()
        assert b"a" in table, "a get reads what is durable"
