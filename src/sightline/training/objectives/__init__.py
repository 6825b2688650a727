"""What training optimises. A new objective is a file and a line here; the training loop stays as it is."""

from sightline.training.objectives.base import CrossEntropy, Objective
from sightline.training.objectives.distillation import Distillation
from sightline.training.objectives.hard_attention import HardAttention
from sightline.training.objectives.self_critical import SelfCritical
from sightline.training.objectives.self_distillation import SelfDistillation

OBJECTIVES: dict[str, type[Objective]] = {
    "cross-entropy": CrossEntropy,
    "hard-attention": HardAttention,
    "self-critical": SelfCritical,
    "distillation": Distillation,
    "self-distillation": SelfDistillation,
}
