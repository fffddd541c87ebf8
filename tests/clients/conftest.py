"""Batched training is tested by torch's own products and by the compiled kernel, at every width that is here."""

import pytest

from fedclade.clients.batched import kernel


@pytest.fixture(params=["torch", *kernel.WIDTHS])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """Who multiplies."""
    chosen = None if request.param == "torch" else kernel.load(request.param)
    if request.param != "torch" and (chosen is None or chosen.lanes < request.param):
        pytest.skip("not built, or the processor has no vectors so wide")
    monkeypatch.setattr(kernel, "KERNEL", chosen)
    return request.param
