"""How a person's own data are read: one name for each choice, the same in a TOML file, after `--set` and in Python."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

LabelKind = Literal[
    "classes", "numbers", "sets"
]  # one of several classes, one or several amounts, any of several labels
RowKind = Literal["features", "tokens"]  # numbers or images; or whole numbers that stand for tokens


class DataOptions(BaseModel):
    """Everything that can be said about own data, e.g. `--set data.label=diagnosis`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The column to predict, or several of them. None: `label` or `y`, else the last one
    label: str | tuple[str, ...] | None = None  # the column, or columns, to be predicted
    labels: LabelKind | None = None  # what labels are. None: what the task needs
    rows: RowKind | None = None  # what rows are. None: what the task needs
    length: Annotated[int, Field(ge=1)] = 64  # tokens of a text that are a row
    client: str | None = None  # in one table of all clients: the column that names the client of a row
    split: str | None = None  # the column that tells `train` from `test` rows. None: `split`, if there is one
    group: str | None = None  # the column with the client's hidden group. None: `group`, if there is one
    ignore: tuple[str, ...] = ()  # columns that are no features
    categorical: tuple[str, ...] = ()  # columns of numbers that stand for categories; columns of text always do
    gaps: tuple[str, ...] = ()  # what else means in a table that a value is missing, e.g. -999
    missing: Literal["refuse", "mean", "median"] = "refuse"  # what stands for missing values, marked by a feature more
    scaling: Literal["federated", "client", "none"] | None = None  # None: federated for files, none for Python arrays
    holdout: Annotated[float, Field(gt=0, lt=1)] = 0.2  # the share of rows that a client without test rows holds out
    holdout_rows: Literal["random", "last"] = "random"  # of each label: drawn, or the last, where neighbours are alike
    skip_unread: bool = False  # leave out files and folders that are no client's, instead of stopping
    skip_small: bool = False  # leave out clients with too few rows to be trained and tested, instead of stopping
    max_classes: Annotated[int, Field(ge=2)] = 1000  # more labels than that are taken for a mistake
    max_gigabytes: Annotated[float, Field(gt=0)] = 2.0  # memory that the data may take

    @field_validator("ignore", "categorical", "gaps", mode="before")
    @classmethod
    def _one_is_a_list_too(cls, value: Any) -> Any:
        values = value if isinstance(value, list | tuple) else (value,)
        return tuple(str(each) if isinstance(each, int | float) else each for each in values)
