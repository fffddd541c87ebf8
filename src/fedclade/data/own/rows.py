"""What a client's own data are before they join a federation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.data.own.labels import Amounts, Labels

if TYPE_CHECKING:
    from fedclade.data.own.tables import Table


@dataclass(frozen=True)
class OwnRows:
    """One client's rows as they were given."""

    name: str
    x: "np.ndarray | Table"
    labels: Labels | Amounts
    test: np.ndarray | None = None  # (rows,) bool: the test rows that were given, if any
    group: Any = None
    numbers: np.ndarray | None = None  # of the rows in the client's file or table; None: 0, 1, 2, ...
    is_text: bool = False  # `labels` are all tokens of a row and the one after it: rows and labels come from them
    where: str = ""  # for errors: the client's file, or its name
    remarks: tuple[str, ...] = ()

    def row(self, place: int) -> str:
        """A row's place, for errors."""
        return f"{self.where}: row {place if self.numbers is None else int(self.numbers[place])}"
