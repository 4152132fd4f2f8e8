"""A model with branches, blocks and a frozen layer, as any script trains one: test_burst_profile.py measures it."""

import sys
from pathlib import Path

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3).requires_grad_(False)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.left, self.right = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 3, padding=1)
        self.norm, self.end = nn.BatchNorm1d(64), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        x = torch.cat([self.left(x), self.right(x)], 1).relu()
        y: torch.Tensor = self.end(self.norm(x.flatten(1)))
        return y


if sys.argv[1:] == ["nothing"]:
    sys.exit(0)
net = Net()
with torch.no_grad():
    net(torch.randn(2, 3, 6, 6))  # no training step
for _ in range(2):
    print("a step of", sys.argv[1:])
    nn.functional.cross_entropy(net(torch.randn(10, 3, 6, 6)), torch.randint(5, (10,))).backward()
    Path("trained").touch()
