"""``sdm doctor --compile`` leaves nothing to be compiled later."""

from __future__ import annotations

from torchsdm import _json_states, _linear_kernel
from torchsdm.cli.doctor import compile_kernels
from torchsdm.core import _candidates
from torchsdm.matching import _kernels


def test_every_kernel_is_run_once(monkeypatch):
    run = set()

    def recorded(name, kernel):
        def call(*arguments):
            run.add(name)
            return kernel(*arguments)

        call.signatures = kernel.signatures  # it is compiled
        return call

    kernels = {
        (module, name): value
        for module in (_kernels, _candidates, _linear_kernel, _json_states)
        for name, value in vars(module).items()
        if hasattr(value, "py_func") and not name.startswith("_")
    }
    assert len(kernels) >= 6
    compile_kernels()  # kernels call each other: compiled code does not see what replaces them below
    for (module, name), kernel in kernels.items():
        monkeypatch.setattr(module, name, recorded(name, kernel))
    compile_kernels()
    assert run == {name for _, name in kernels}
