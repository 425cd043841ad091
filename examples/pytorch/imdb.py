"""Are film reviews friendly? With DistributedDataParallel and Gloo.

    torchrun --standalone --nproc-per-node=2 examples/pytorch/imdb.py --data /tmp/imdb

Batches of long texts go through another layer than batches of short ones: that needs
find_unused_parameters. build/bin/imdb ends with the same bits.
"""
import collections
import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import twin

WIDTH = 32


def words_of(text):
    return re.findall(rb"[a-z0-9']+", text.lower())


def read(root):
    texts, labels = [], []
    for label, name in enumerate(("neg", "pos")):
        for path in sorted(Path(root, name).glob("*.txt")):
            texts.append(words_of(path.read_bytes()))
            labels.append(label)
    return texts, labels


def codes_of_words(texts, most):
    counts = collections.Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:most]
    return {word: code for code, word in enumerate(ranked, 1)}


def encoded(texts, labels, codes, length):
    return [([codes.get(word, 0) for word in text[:length]] or [0], label) for text, label in zip(texts, labels)]


def batch_of(samples):
    starts, words = [], []
    for text, _ in samples:
        starts.append(len(words))
        words += text
    return torch.tensor(words), torch.tensor(starts), torch.tensor([label for _, label in samples])


class Net(nn.Module):
    def __init__(self, words, long_text):
        super().__init__()
        self.long_text = long_text
        self.vectors = nn.EmbeddingBag(words, WIDTH, mode="mean")
        self.short = nn.Linear(WIDTH, WIDTH)
        self.long = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, 2)

    def forward(self, words, starts):
        texts = self.vectors(words, starts)
        layer = self.long if len(words) > self.long_text * len(starts) else self.short
        return self.output(torch.relu(layer(texts)))


def main():
    options = twin.options_of(__doc__, epochs=3, batch_size=32, words=20000, length=256, long_text=200, lr=1.0)
    texts, labels = read(f"{options.data}/train")
    codes = codes_of_words(texts, options.words)
    train = encoded(texts, labels, codes, options.length)
    held_out = encoded(*read(f"{options.data}/test"), codes, options.length)
    torch.manual_seed(1)
    net = Net(len(codes) + 1, options.long_text)
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, options.batch_size, sampler=sampler, collate_fn=batch_of)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        twin.say_epoch(epoch, options.epochs, twin.train_epoch(loader, model, optimizer))
    twin.say_result(net, held_out, 32, batch_of)
    del model  # before its group: PyTorch 2.11 can block otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
