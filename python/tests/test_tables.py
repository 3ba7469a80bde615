"""Tables, their types, and their encoding in Rust."""

from __future__ import annotations

import copy
import importlib.metadata
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import SMALL

import braid

INTEGERS: list[tuple[braid.Type[int], int, int]] = [
    (braid.u8, 0, 2**8 - 1),
    (braid.u16, 0, 2**16 - 1),
    (braid.u32, 0, 2**32 - 1),
    (braid.u64, 0, 2**64 - 1),
    (braid.u128, 0, 2**128 - 1),
    (braid.i8, -(2**7), 2**7 - 1),
    (braid.i16, -(2**15), 2**15 - 1),
    (braid.i32, -(2**31), 2**31 - 1),
    (braid.i64, -(2**63), 2**63 - 1),
    (braid.i128, -(2**127), 2**127 - 1),
]


@pytest.mark.parametrize(("kind", "low", "high"), INTEGERS, ids=lambda x: str(x))
def test_integers_keep_their_order_and_range(
    db: braid.Database, kind: braid.Type[int], low: int, high: int
) -> None:
    table = db.open_table("t", key=kind, value=kind)
    numbers = sorted({low, low + 1, -1 if low else 1, 0, 1, high - 1, high})
    for number in reversed(numbers):
        table[number] = number
    assert list(table) == numbers
    assert list(table.values()) == numbers
    for outside in (low - 1, high + 1):
        with pytest.raises(OverflowError, match=kind.name):
            table[outside] = 0
        with pytest.raises(OverflowError, match=kind.name):
            table[0] = outside
    assert list(table) == numbers


def test_floats(db: braid.Database) -> None:
    exact = db.open_table("f64", key=str, value=float)
    for value in (0.1, -1e300, math.inf, 5e-324):
        exact["x"] = value
        assert exact["x"] == value
    exact["nan"] = math.nan
    assert math.isnan(exact["nan"])
    exact["int"] = 3
    assert exact["int"] == 3.0
    short = db.open_table("f32", key=str, value=braid.f32)
    short["x"] = 0.5
    assert short["x"] == 0.5


def test_bytes_come_from_objects_with_bytes(db: braid.Database) -> None:
    table = db.open_table("t")
    table[bytearray(b"a")] = memoryview(b"xyz")[::2]  # type: ignore[index, assignment]
    assert dict(table) == {b"a": b"xz"}
    table[b""] = b""
    assert table.first() == (b"", b"")


@pytest.mark.parametrize("wrong", ["text", 5, None, 1.5, [b"a"], object()])
def test_wrong_types_are_type_errors(db: braid.Database, wrong: Any) -> None:
    table: Any = db.open_table("t", key=bytes, value=bytes)
    for use in (
        lambda: table[wrong],
        lambda: table.get(wrong),
        lambda: wrong in table,
        lambda: table.__setitem__(wrong, b""),
        lambda: table.__setitem__(b"k", wrong),
        lambda: table.__delitem__(wrong),
        lambda: table.prefix(wrong),
        lambda: table.range(b"a", wrong) if wrong is not None else table[None],
        lambda: db.begin().insert(table, wrong, b""),
        lambda: db.begin().insert(wrong, b"k", b""),
        lambda: db.snapshot().get(wrong, b"k"),
    ):
        with pytest.raises(TypeError):
            use()
    assert not table


def test_strings(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=str)
    table["Ünïcode 🍣"] = "\0"
    assert dict(table) == {"Ünïcode 🍣": "\0"}
    with pytest.raises(UnicodeEncodeError):
        table["\ud800"] = ""
    with pytest.raises(TypeError, match="a key of this table must be str, not bytes"):
        table[b"x"] = ""  # type: ignore[index]


def test_types_are_compared(db: braid.Database) -> None:
    db.open_table("t", key=str, value=braid.u64)
    with pytest.raises(braid.TableTypeError, match="string -> u64, not string -> bytes") as error:
        db.open_table("t", key=str)
    assert isinstance(error.value, TypeError)
    table = db.existing_table("t")
    assert table is not None
    assert (table.key_type, table.value_type) == (str, braid.u64)
    assert repr(table) == '<braid.Table "t": string -> u64>'
    assert db.existing_table("other") is None
    with pytest.raises(TypeError, match="can't be the type of keys"):
        db.open_table("f", key=float)
    wrong: list[Any] = [list, "u64", 5]
    for nonsense in wrong:
        with pytest.raises(TypeError, match="not a type of a table"):
            db.open_table("f", value=nonsense)
    assert db.table_names() == ["t"]


def test_types_are_values() -> None:
    assert braid.u64 == pickle.loads(pickle.dumps(braid.u64)) == copy.deepcopy(braid.u64)
    assert len({braid.u8, braid.u16, braid.u8}) == 2


def test_booleans_and_sets(db: braid.Database) -> None:
    flags = db.open_table("flags", key=bool, value=bool)
    flags.update({True: False, False: True})
    assert list(flags.items()) == [(False, True), (True, False)]
    assert (flags.key_type, flags.value_type) == (bool, bool)
    for wrong in (1, 0, None, "x"):
        with pytest.raises(TypeError, match="a key of this table must be bool"):
            flags.get(wrong)  # type: ignore[call-overload]
    names = db.open_table("names", key=str, value=type(None))
    names["Ada"] = None
    assert "Ada" in names and "Grace" not in names
    assert dict(names) == {"Ada": None}
    assert names.get_many(["Ada", "Grace"], default=False) == [None, False]
    assert names.value_type is type(None)
    with pytest.raises(TypeError, match="a value of this table must be None, not bool"):
        names["Grace"] = True  # type: ignore[assignment]
    with pytest.raises(TypeError, match="can't be the type of keys"):
        db.open_table("f", key=type(None))


def test_types_of_rust_have_their_names(db: braid.Database) -> None:
    kind = braid.tuple_of(str, braid.tuple_of(braid.u32, bool), bytes)
    table = db.open_table("t", key=kind, value=bool)
    assert repr(table) == '<braid.Table "t": (string, (u32, bool), bytes) -> bool>'
    assert table.key_type == kind == pickle.loads(pickle.dumps(kind))
    assert repr(braid.tuple_of(str, int)) == "braid.tuple_of(str, int)"
    assert len({kind, table.key_type, braid.tuple_of(str, int)}) == 2
    again = db.existing_table("t")
    assert again is not None and again.key_type == kind
    with pytest.raises(braid.TableTypeError, match=r"\(string, i64\) -> bool"):
        db.open_table("t", key=tuple[str, int], value=bool)
    wrong: list[Any] = [tuple, tuple[str], tuple[str, ...], tuple[str, float], tuple[str, None]]
    for nonsense in wrong:
        with pytest.raises(TypeError):
            db.open_table("f", key=nonsense)
    with pytest.raises(TypeError):
        db.open_table("f", value=tuple[str, int])
    # The encoding in Rust of ("a", 7u32, true), ("a\0", ...).
    raw = db.open_table("raw", key=braid.tuple_of(str, braid.u32, bool), value=bytes)
    raw["a", 7, True] = b"1"
    raw["a\0", 0, False] = b"2"
    ticket = db.feed("f", start="oldest") if False else None
    assert ticket is None


TUPLES = st.tuples(
    st.text(alphabet="\0\1a", max_size=3),
    st.integers(-2, 2),
    st.booleans(),
    st.binary(max_size=2),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(keys=st.lists(TUPLES, max_size=20))
def test_tuples_keep_the_order_of_their_parts(
    db: braid.Database, keys: list[tuple[str, int, bool, bytes]]
) -> None:
    table = db.open_table("t", key=tuple[str, int, bool, bytes], value=int)
    table.clear()
    table.update((key, n) for n, key in enumerate(keys))
    assert list(table) == sorted(set(keys))
    for first in {key[0] for key in keys}:
        found = [key for key, _ in table.prefix((first,))]
        assert found == sorted(key for key in set(keys) if key[0] == first)
    for key in keys:
        assert [found for found, _ in table.prefix(key)] == [
            other for other in sorted(set(keys)) if other[:3] == key[:3]
            and other[3].startswith(key[3])
        ]
        assert table[key] == len(keys) - 1 - keys[::-1].index(key)


def test_wrong_tuples_are_type_errors(db: braid.Database) -> None:
    table: Any = db.open_table("t", key=tuple[str, int], value=int)
    for wrong in (("a",), ("a", 1, 2), ("a", "b"), (1, 1), ["a", 1], "a", None, ()):
        with pytest.raises(TypeError):
            table[wrong] = 1
    with pytest.raises(TypeError):
        table.prefix(("a", 1, 2))
    with pytest.raises(TypeError):
        table.prefix("a")
    with pytest.raises(OverflowError):
        table["a", 2**63] = 1
    assert not table


def test_many_keys_at_once(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=str)
    table.update((n, str(n)) for n in range(0, 1000, 2))
    assert table.get_many([4, 5, 4]) == ["4", None, "4"]
    assert table.get_many(iter([5]), default="?") == ["?"]
    assert table.get_many([]) == []
    with db.begin() as tx:
        tx.insert(table, 5, "five")
        tx.prefetch(table, range(100))
        assert tx.get_many(table, range(4, 7)) == ["4", "five", "6"]
    with db.snapshot() as snapshot:
        table[5] = "V"
        snapshot.prefetch(table, [5])
        assert snapshot.get_many(table, [5, 7], default="") == ["five", ""]
    with pytest.raises(braid.ClosedError):
        snapshot.prefetch(table, [5])
    wrong: list[Any] = [5, ["x"], None]
    for nonsense in wrong:
        with pytest.raises(TypeError):
            table.get_many(nonsense)


def test_estimates(db: braid.Database) -> None:
    table = db.open_table("t", key=braid.u32, value=bytes)
    assert table.estimate() == braid.Estimate(entries=0, bytes=0)
    table.update((n, b"x" * 10) for n in range(50))
    assert table.estimate() == braid.Estimate(entries=50, bytes=50 * 14)
    assert table.estimate(10, 20).entries == 10
    assert table.estimate(10, 20, include_stop=True).entries == 11
    assert table.estimate(20, 10).entries == 0
    table.update((n, b"x" * 10) for n in range(20_000))
    assert 10_000 < table.estimate().entries < 30_000


def test_the_version_is_that_of_the_package() -> None:
    assert braid.__version__ == importlib.metadata.version("braid")
    files = importlib.metadata.files("braid") or []
    licences = {file.name for file in files if file.name.startswith("LICENSE")}
    assert licences == {"LICENSE-APACHE", "LICENSE-MIT"}


def test_names(db: braid.Database) -> None:
    table = db.open_table("a", key=str, value=str)
    table["k"] = "v"
    db.rename_table("a", "b")
    assert (table.name, table["k"]) == ("b", "v")
    with pytest.raises(braid.TableNotFoundError):
        db.rename_table("a", "c")
    with pytest.raises(braid.TableNotFoundError) as missing:
        db.open_table("a", create=False)
    assert isinstance(missing.value, LookupError)
    db.open_table("c")
    with pytest.raises(braid.TableExistsError):
        db.rename_table("b", "c")
    for name in ("", "x" * (braid.MAX_TABLE_NAME_LEN + 1)):
        with pytest.raises(braid.TableNameError):
            db.open_table(name)
    assert db.drop_table("b")
    assert not db.drop_table("b")
    with pytest.raises(braid.TableDroppedError):
        table["k"]
    assert db.table_names() == ["c"]


def test_a_table_of_another_database(db: braid.Database) -> None:
    with braid.in_memory(**SMALL) as other:
        table = other.open_table("t")
        with db.begin() as tx, pytest.raises(braid.ForeignTableError):
            tx.get(table, b"")


def test_limits(db: braid.Database) -> None:
    table = db.open_table("t")
    with pytest.raises(braid.LimitError, match="a key of") as error:
        table[b"x" * (braid.MAX_KEY_LEN + 1)] = b""
    assert isinstance(error.value, ValueError)
    table[b"x" * braid.MAX_KEY_LEN] = b""
    with braid.in_memory(transaction_bytes_max=1024, **SMALL) as small:
        tight = small.open_table("t")
        with pytest.raises(braid.LimitError, match="split it"):
            tight.update({bytes([i]): b"x" * 100 for i in range(20)})
        assert not tight


def test_long_keys(db: braid.Database) -> None:
    assert braid.MAX_KEY_LEN == 8192
    table = db.open_table("t", key=str, value=int)
    lengths = [1, 1024, 1025, 4000, braid.MAX_KEY_LEN]
    keys = ["k" * length for length in lengths]
    table.update(zip(keys, lengths, strict=True))
    assert list(table.items()) == list(zip(keys, lengths, strict=True))
    assert list(reversed(table)) == keys[::-1]
    assert [len(key) for key, _ in table.range(keys[1], keys[3])] == [1024, 1025]
    with db.begin() as tx:
        assert tx.get(table, keys[4]) == braid.MAX_KEY_LEN
        assert tx.remove(table, keys[4])
    assert keys[4] not in table
    assert len(table) == 4


def test_ranges(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    table.update((i, i * i) for i in range(1000))
    assert list(table.range(5, 8)) == [(5, 25), (6, 36), (7, 49)]
    assert list(table.range(5, 8, include_stop=True))[-1] == (8, 64)
    assert list(table.range(997)) == [(i, i * i) for i in (997, 998, 999)]
    assert [k for k, _ in table.range(None, 3, reverse=True)] == [2, 1, 0]
    assert [k for k, _ in table.range()] == list(range(1000))
    assert [k for k, _ in table.range(reverse=True)] == list(range(999, -1, -1))
    assert list(reversed(table)) == list(range(999, -1, -1))
    assert list(table.range(8, 5)) == []
    assert list(table.range(5, 5)) == []
    assert (table.first(), table.last()) == ((0, 0), (999, 999 * 999))
    with pytest.raises(TypeError, match="prefix"):
        table.prefix(5)


def test_prefixes(db: braid.Database) -> None:
    table = db.open_table("t")
    keys = [b"", b"a", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff\x01"]
    table.update({key: key for key in keys})
    for prefix in [b"", b"a", b"a\xff", b"\xff", b"\xff\xff", b"c"]:
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert [key for key, _ in table.prefix(prefix)] == expected
        assert [key for key, _ in table.prefix(prefix, reverse=True)] == expected[::-1]


def test_large_values_come_in_small_batches(db: braid.Database) -> None:
    table = db.open_table("t", key=int)
    for i in range(6):
        table[i] = bytes([i]) * 200_000
    assert [value[0] for value in table.values()] == list(range(6))
    assert [len(value) for _, value in table.range(reverse=True)] == [200_000] * 6


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    entries=st.dictionaries(st.binary(max_size=4), st.binary(max_size=8), max_size=40),
    start=st.none() | st.binary(max_size=4),
    stop=st.none() | st.binary(max_size=4),
    include_stop=st.booleans(),
    reverse=st.booleans(),
    prefix=st.binary(max_size=2),
)
def test_ranges_are_those_of_a_sorted_list(
    db: braid.Database,
    entries: dict[bytes, bytes],
    start: bytes | None,
    stop: bytes | None,
    include_stop: bool,
    reverse: bool,
    prefix: bytes,
) -> None:
    table = db.open_table("t")
    table.clear()
    table.update(entries)

    def fits(key: bytes) -> bool:
        below = stop is None or key < stop or (include_stop and key == stop)
        return below and (start is None or key >= start)

    expected = sorted(((k, v) for k, v in entries.items() if fits(k)), reverse=reverse)
    with db.begin() as tx, db.snapshot() as snapshot:
        for source in (tx, snapshot):
            options = {"include_stop": include_stop, "reverse": reverse}
            assert list(source.range(table, start, stop, **options)) == expected
    begins = sorted(((k, v) for k, v in entries.items() if k.startswith(prefix)), reverse=reverse)
    assert list(table.prefix(prefix, reverse=reverse)) == begins


def test_stored_values_outlive_their_process(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        db.open_table("t", key=str, value=int)["a"] = -5
    with braid.open(path, create_if_missing=False, **SMALL) as db:
        table = db.existing_table("t")
        assert table is not None and dict(table) == {"a": -5}
