"""The tables and figures of the papers, made again: `reproduce("fedclust/table1", scale="small")`.

One file a paper declares its items and holds the paper's numbers; `item` has the few kinds of items, `making` runs
what an item needs, `page` sets our numbers beside the paper's.
"""

from fedclade.reproduce.making import reproduce

__all__ = ["reproduce"]
