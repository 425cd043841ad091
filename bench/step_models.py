"""The models of bench/step and one batch for each, as bench/step_models.h has them: change both."""
import torch
from torch import nn

WIDTH, HEADS, LAYERS, WORDS, LENGTH = 320, 5, 4, 2000, 64


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


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.split = nn.Linear(WIDTH, 3 * WIDTH)
        self.join = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, words):
        words = words + self.attention(self.norm1(words))
        return words + self.narrow(nn.functional.gelu(self.wide(self.norm2(words))))

    def attention(self, words):
        count = words.size(0)
        parts = self.split(words).view(count, LENGTH, 3, HEADS, WIDTH // HEADS)
        heads = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        return self.join(mixed.transpose(1, 2).reshape(count, LENGTH, WIDTH))


class Deep(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Linear(16, 16) for _ in range(150)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*(EncoderLayer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.last = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        words = self.layers(self.words(words) + self.places(torch.arange(LENGTH)))
        return self.last(self.norm(words)).view(-1, WORDS)


def set_weights(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() > 1:
                values.copy_(torch.randn(values.shape) / (values.numel() // values.shape[0]) ** 0.5)
            elif name.endswith("bias"):
                values.zero_()


def make_model(name):
    model = {"mlp": Mlp, "deep": Deep, "resnet18": ResNet18, "transformer": Transformer}[name]()
    set_weights(model)
    return model


def make_batch(name, rank):
    torch.manual_seed(1000 + rank)
    if name == "mlp":
        return torch.randn(64, 784), torch.randint(10, (64,))
    if name == "deep":
        return torch.randn(16, 16), torch.randint(16, (16,))
    if name == "resnet18":
        return torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    return torch.randint(WORDS, (8, LENGTH)), torch.randint(WORDS, (8 * LENGTH,))
