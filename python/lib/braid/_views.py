"""Views of a table's keys, values and entries. Each iteration reads a snapshot of its own."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from braid._braid import Table

K = TypeVar("K")
V = TypeVar("V")


class _OfTable(Generic[K, V]):
    _mapping: Table[K, V]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._mapping!r})"


class TableKeys(_OfTable[K, V], KeysView[K]):
    def __reversed__(self) -> Iterator[K]:
        return reversed(self._mapping)


class TableItems(_OfTable[K, V], ItemsView[K, V]):
    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.range()

    def __reversed__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.range(reverse=True)


class TableValues(_OfTable[K, V], ValuesView[V]):
    def __contains__(self, value: object) -> bool:
        return any(value is found or value == found for found in self)

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.range())

    def __reversed__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.range(reverse=True))
