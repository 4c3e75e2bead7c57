"""A project that knows nothing of SkipScope: what examples in README and docs import."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MyModule(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class MyData(pl.LightningDataModule):
    def train_dataloader(self):
        images, labels = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
        return DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
