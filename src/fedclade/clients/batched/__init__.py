"""Gradients of many clients' networks at once, as batched matrix products.

A loop of eager torch steps spends most of its time on call overhead when networks and batches are small. Here a step is
taken for K clients together: each layer is a batched product, forward and backward are written out, and all tensors are
made once and used again. Products and convolutions are torch's, or those of a compiled kernel (`kernel`). It serves
chains of known layers (`operations`), where it is worth it (`is_worth_it`).

A client's numbers do not depend on how many others share its products (a test holds us to that).
"""

from fedclade.clients.batched.chain import Chain, first_trained, is_worth_it, largest_group
from fedclade.clients.batched.kernel import is_used
from fedclade.clients.batched.layers import Operation
from fedclade.clients.batched.places import SMALLEST
from fedclade.clients.batched.reading import operations

__all__ = ["SMALLEST", "Chain", "Operation", "first_trained", "is_used", "is_worth_it", "largest_group", "operations"]
