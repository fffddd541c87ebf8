"""A person's own data: arrays, torch data sets, or files, with one client each."""

from fedclade.data.own.arrays import from_arrays, from_datasets
from fedclade.data.own.files import column_order, folder_of, from_folder

__all__ = ["column_order", "folder_of", "from_arrays", "from_datasets", "from_folder"]
