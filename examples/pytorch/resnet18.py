"""ResNet-18 as examples/nets/resnet18.h has it: torchvision's, but for the first layer of small
images (stem=3)."""
import torch
from torch import nn


def convolution(before, after, side, stride):
    return nn.Conv2d(before, after, side, stride=stride, padding=side // 2, bias=False)


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.bn1 = convolution(before, after, 3, stride), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = convolution(after, after, 3, 1), nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(convolution(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x):
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, classes, stem, width=64):
        super().__init__()
        self.small = stem == 3
        self.conv1, self.bn1 = convolution(3, width, stem, 1 if self.small else 2), nn.BatchNorm2d(width)
        blocks, before = [], width
        for layer in range(4):
            after = width << layer
            blocks += [Block(before, after, 1 if layer == 0 else 2), Block(after, after, 1)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(before, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        if not self.small:
            x = nn.functional.max_pool2d(x, 3, 2, 1)
        x = self.blocks(x)
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))
