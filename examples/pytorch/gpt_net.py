"""The transformer of examples/gpt/transformer.h: the same units, with the same initial weights."""
import torch
from torch import nn

CHARACTERS = 128  # ASCII's


class Start(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.words, self.places = nn.Embedding(CHARACTERS, width), nn.Embedding(length, width)

    def forward(self, ids):
        return self.words(ids) + self.places(torch.arange(ids.size(1)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.features = width // heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, self.features)).permute(3, 0, 2, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class End(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, x):
        return self.head(self.norm(x)).flatten(0, 1)


class Gpt(nn.Module):
    """The units of one stage."""

    def __init__(self, options, stage, stages):
        super().__init__()
        layers = options.layers // stages
        torch.manual_seed(1)
        self.start = Start(options.width, options.length) if stage == 0 else None
        self.blocks = nn.ModuleList()
        for layer in range(layers * stage, layers * (stage + 1)):
            torch.manual_seed(2 + layer)
            self.blocks.append(Block(options.width, options.heads))
        torch.manual_seed(2 + options.layers)
        self.end = End(options.width) if stage == stages - 1 else None

    def units(self):
        return [unit for unit in (self.start, *self.blocks, self.end) if unit is not None]

    def forward(self, x):
        for unit in self.units():
            x = unit(x)
        return x
