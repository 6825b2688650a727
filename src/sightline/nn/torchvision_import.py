"""Import torchvision (directly or through timm) where torch is a CPU-only build.

torchvision's x86 wheels on the public index are CUDA builds: with a CPU torch their compiled operators do not load
and the import itself fails with "operator torchvision::nms does not exist". None of those operators is used here, so
where that happens they are declared without an implementation. Import this module before torchvision or timm.
"""

from __future__ import annotations

import sys

import torch

try:
    import torchvision
except RuntimeError:
    _declared = torch.library.Library("torchvision", "DEF")  # must live as long as the process
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for _name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[_name]
    import torchvision

__all__ = ["torchvision"]
