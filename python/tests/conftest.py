"""Shared by all tests: one thread, the same seed, and devices to run on."""

import pytest
import torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture(autouse=True)
def _seeded():
    torch.set_num_threads(2)
    torch.manual_seed(1234)
    torch._dynamo.reset()


@pytest.fixture(params=DEVICES)
def device(request):
    return torch.device(request.param)
