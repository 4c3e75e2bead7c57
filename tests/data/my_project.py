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


class MyTexts(pl.LightningDataModule):
    """Dicts of tokens and masks; each token has a label, or, with so many classes, each text."""

    def __init__(self, classes: int = 0):
        super().__init__()
        self.classes = classes

    def loader(self, seed):
        drawn = torch.Generator().manual_seed(seed)
        tokens = torch.randint(8, (24, 6), generator=drawn)
        mask = (torch.arange(6) < torch.randint(3, 7, (24, 1), generator=drawn)).long()
        labels = tokens[:, 0] % self.classes if self.classes else tokens.masked_fill(mask == 0, -100)
        rows = zip(tokens, mask, labels)
        names = ("input_ids", "attention_mask", "labels")
        return DataLoader([dict(zip(names, row)) for row in rows], batch_size=8)

    def train_dataloader(self):
        return self.loader(0)

    def val_dataloader(self):
        return self.loader(1)


class MyData(pl.LightningDataModule):
    def train_dataloader(self):
        images, labels = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
        return DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
