"""FedEM: every client's rows are a mixture of a few hidden distributions, each with a model that all share.

Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021.

All clients train all components, each row weighted by how likely it is of a component, and average them; a client
keeps to itself how much each component counts for it, and is served by the mixture of their predictions.

How we read it: the likelihood of a client's rows under the mixture is lowered step by step (gradient EM). The gradient
of a component is then that of its loss with each row weighted by its responsibility, and that of the mixing weights
leads to the mean responsibility, which are the paper's two M-steps; the paper works responsibilities out once a round,
here they are those of the step.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from fedclade.errors import FedcladeError
from fedclade.methods.base import About, Count
from fedclade.methods.shared_layers import SharedLayers
from fedclade.models import default_model, mixture_of
from fedclade.models.assigned import Networks, Spec
from fedclade.models.weights import Layout


class FedEM(SharedLayers):
    about: ClassVar[About] = About(
        "a mixture of shared models, in shares of its own for each client",
        "Marfoq et al. 2021",
        sends="all components",
        needs_labels=True,
        formula="p(y | x, i) = sum_k pi_ik p_k(y | x); pi_i is the client's own, the p_k are shared",
        use="when clients are mixtures of a few kinds rather than of one kind each, and rounds are many",
    )

    sign: ClassVar[str] = "*"  # of its mixture (`fedclade.models.mixture`)

    n_components: Count = 3  # how many shared models there are

    def networks(
        self, models: Sequence[Spec], clients: Sequence[str], input_shape: tuple[int, ...], n_classes: int
    ) -> Networks:
        if len(models) > 1:
            raise FedcladeError("the components of a mixture are of one kind: name one model")
        spec = models[0] if models else default_model(input_shape)
        count, sign = self.n_components, self.sign
        mixed = f"{count}{sign}{spec}" if isinstance(spec, str) else mixture_of(spec, count, sign)
        return replace(Networks.shared(mixed, input_shape, n_classes), specs=(spec,))

    def shared(self, layout: Layout) -> tuple[str, ...]:
        return tuple(layer for layer in layout.layers if layer != layout.head)  # the mixing weights are the last layer
