"""A list of modules that knows the type of its elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class ModuleList(nn.ModuleList, Generic[ModuleT]):
    def __iter__(self) -> Iterator[ModuleT]:
        return cast(Iterator[ModuleT], super().__iter__())
