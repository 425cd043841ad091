"""The nets of examples/nets/conv_nets.h: ResNet-18, AlexNet and VGG-11 with batch norm, with
torchvision's layers. Small images have smaller first layers."""
from torch import nn

from resnet18 import ResNet18


class TwoPartNet(nn.Module):
    """Convolutions, and linear layers on what they find."""

    def __init__(self, features, classifier):
        super().__init__()
        self.features, self.classifier = nn.Sequential(*features), nn.Sequential(*classifier)

    def forward(self, images):
        return self.classifier(self.features(images).flatten(1))


def alexnet(classes, small, width):
    side, hidden = 2 if small else 6, 64 * width

    def max_pool():
        return nn.MaxPool2d(2 if small else 3, 2)

    features = [nn.Conv2d(3, width, 3, 2, 1) if small else nn.Conv2d(3, width, 11, 4, 2), nn.ReLU(), max_pool(),
                nn.Conv2d(width, 3 * width, 3, 1, 1) if small else nn.Conv2d(width, 3 * width, 5, 1, 2), nn.ReLU(), max_pool()]
    for before, after in ((3, 6), (6, 4), (4, 4)):
        features += nn.Conv2d(before * width, after * width, 3, 1, 1), nn.ReLU()
    features += max_pool(), nn.AdaptiveAvgPool2d(side)
    classifier = []
    for inputs in (4 * width * side * side, hidden):
        classifier += nn.Dropout(0.5), nn.Linear(inputs, hidden), nn.ReLU()
    return TwoPartNet(features, [*classifier, nn.Linear(hidden, classes)])


def vgg11(classes, small, width):
    side, hidden, before, features, classifier = 1 if small else 7, 64 * width, 3, [], []
    for times in (1, None, 2, None, 4, 4, None, 8, 8, None, 8, 8, None):
        if times is None:
            features.append(nn.MaxPool2d(2))
            continue
        features += nn.Conv2d(before, times * width, 3, 1, 1), nn.BatchNorm2d(times * width), nn.ReLU()
        before = times * width
    features.append(nn.AdaptiveAvgPool2d(side))
    for inputs in (before * side * side, hidden):
        classifier += nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(0.5)
    return TwoPartNet(features, [*classifier, nn.Linear(hidden, classes)])


def conv_net(name, classes, small, width):
    """`name`: "resnet18", "alexnet" or "vgg11". `small`: for small images."""
    if name == "resnet18":
        return ResNet18(classes, 3 if small else 7, width)
    return {"alexnet": alexnet, "vgg11": vgg11}[name](classes, small, width)
