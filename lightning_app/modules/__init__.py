"""LightningModules that wrap any networks: the cost, the metrics, the bank of members."""

from lightning_app.modules.classifier import ImageClassifier
from lightning_app.modules.members import Arm, Member, NetFactory

__all__ = ["Arm", "ImageClassifier", "Member", "NetFactory"]
