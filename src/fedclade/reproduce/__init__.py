"""The tables and figures of the papers, made again: `reproduce("fedclust/table1", scale="small")`.

papers      what each paper's items run, and beside it, in a data file, the paper's numbers
item, kinds     what an item is, and the few kinds of them
scale       settings in layers, cut to a scale
finished, layers    what is read from finished runs
making      runs what an item needs
page, drawing   sets our numbers beside the paper's
"""

from fedclade.reproduce.making import reproduce

__all__ = ["reproduce"]
