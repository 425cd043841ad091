"""The models of bench/step and one batch for each, as bench/step_models.h has them: change both."""
import collections

import torch
from torch import nn

Size = collections.namedtuple("Size", "width heads layers words length")
SMALL, LARGE = Size(320, 5, 4, 2000, 64), Size(1024, 16, 24, 32000, 512)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(784, 512)
        self.second = nn.Linear(512, 512)
        self.last = nn.Linear(512, 10)

    def forward(self, inputs):
        inputs = torch.relu(self.first(inputs))
        return self.last(torch.relu(self.second(inputs)))


def convolution(inputs, outputs, side, stride):
    return nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, bias=False)


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs, 3, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.past = None
        if inputs != outputs:
            self.past = convolution(inputs, outputs, 1, stride)
            self.past_norm = nn.BatchNorm2d(outputs)

    def forward(self, inputs):
        hidden = torch.relu(self.norm1(self.conv1(inputs)))
        past = self.past_norm(self.past(inputs)) if self.past else inputs
        return torch.relu(self.norm2(self.conv2(hidden)) + past)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = convolution(3, 64, 3, 1)
        self.norm = nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for outputs in 64, 128, 256, 512:
            blocks += [ResidualBlock(inputs, outputs, 1 if inputs == outputs else 2), ResidualBlock(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(512, 10)

    def forward(self, images):
        images = self.blocks(torch.relu(self.norm(self.conv(images))))
        return self.last(images.mean((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        narrow = outputs // 4
        self.conv1 = convolution(inputs, narrow, 1, 1)
        self.norm1 = nn.BatchNorm2d(narrow)
        self.conv2 = convolution(narrow, narrow, 3, stride)
        self.norm2 = nn.BatchNorm2d(narrow)
        self.conv3 = convolution(narrow, outputs, 1, 1)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.past = None
        if inputs != outputs:
            self.past = convolution(inputs, outputs, 1, stride)
            self.past_norm = nn.BatchNorm2d(outputs)

    def forward(self, inputs):
        narrow = torch.relu(self.norm1(self.conv1(inputs)))
        hidden = self.norm3(self.conv3(torch.relu(self.norm2(self.conv2(narrow)))))
        past = self.past_norm(self.past(inputs)) if self.past else inputs
        return torch.relu(hidden + past)


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = convolution(3, 64, 7, 2)
        self.norm = nn.BatchNorm2d(64)
        blocks, inputs, outputs = [], 64, 256
        for stage, count in enumerate((3, 4, 6, 3)):
            for block in range(count):
                blocks.append(Bottleneck(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
                inputs = outputs
            outputs *= 2
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(2048, 1000)

    def forward(self, images):
        images = torch.relu(self.norm(self.conv(images)))
        images = self.blocks(nn.functional.max_pool2d(images, 3, 2, 1))
        return self.last(images.mean((2, 3)))


class EncoderLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, width = size, size.width
        self.norm1 = nn.LayerNorm(width)
        self.split = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, words):
        words = words + self.attention(self.norm1(words))
        return words + self.narrow(nn.functional.gelu(self.wide(self.norm2(words))))

    def attention(self, words):
        count, (width, heads, _, _, length) = words.size(0), self.size
        parts = self.split(words).view(count, length, 3, heads, width // heads)
        heads = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        return self.join(mixed.transpose(1, 2).reshape(count, length, width))


class Deep(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Linear(16, 16) for _ in range(150)))


class Transformer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Embedding(size.length, size.width)
        self.layers = nn.Sequential(*(EncoderLayer(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.last = nn.Linear(size.width, size.words)

    def forward(self, words):
        places = torch.arange(self.size.length, device=words.device)
        words = self.layers(self.words(words) + self.places(places))
        return self.last(self.norm(words)).view(-1, self.size.words)


def set_weights(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() > 1:
                values.copy_(torch.randn(values.shape, device=values.device) / (values.numel() // values.shape[0]) ** 0.5)
            elif name.endswith("bias"):
                values.zero_()


def make_model(name, device):
    model = {"mlp": Mlp, "deep": Deep, "resnet18": ResNet18, "resnet50": ResNet50, "transformer": lambda: Transformer(SMALL),
             "transformer350m": lambda: Transformer(LARGE)}[name]()
    set_weights(model.to(device))
    return model


def make_batch(name, rank, wide):
    """Each rank has samples of its own. `wide`: as many as a GPU computes at once."""
    torch.manual_seed(1000 + rank)
    if name == "mlp":
        return torch.randn(64, 784), torch.randint(10, (64,))
    if name == "deep":
        return torch.randn(16, 16), torch.randint(16, (16,))
    if name.startswith("resnet"):
        count, side, classes = {"resnet18": (128 if wide else 16, 32, 10), "resnet50": (64, 224, 1000) if wide else (2, 64, 1000)}[name]
        return torch.randn(count, 3, side, side), torch.randint(classes, (count,))
    size = SMALL if name == "transformer" else LARGE
    return torch.randint(size.words, (8, size.length)), torch.randint(size.words, (8 * size.length,))
