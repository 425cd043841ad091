"""A net (--model) on CIFAR-10 with DistributedDataParallel and Gloo. With --device=cuda and NCCL it
is on GPUs, with --bf16 in 16 bits.

    torchrun --standalone --nproc-per-node=2 examples/pytorch/cifar10.py --data /tmp/cifar10

The images are shifted and mirrored by the same numbers as in build/bin/cifar10.
"""
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import twin
from conv_nets import conv_net

MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
WORD = 0xFFFFFFFFFFFFFFFF


def mixed(number):
    number = number + 0x9E3779B97F4A7C15 & WORD
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB & WORD
    return number ^ number >> 31


class CifarSet(Dataset):
    def __init__(self, paths, augment):
        records = torch.frombuffer(bytearray(b"".join(Path(path).read_bytes() for path in paths)), dtype=torch.uint8)
        records = records.view(-1, 3073)
        self.labels, self.images = records[:, 0].long(), records[:, 1:].view(-1, 3, 32, 32)
        self.augment, self.epoch = augment, 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            random = mixed((self.epoch << 32) + index)
            right, down = random % 256 % 9, (random >> 8) % 256 % 9
            image = nn.functional.pad(image, (4, 4, 4, 4))[:, down:down + 32, right:right + 32]
            if random >> 16 & 1:
                image = image.flip(2)
        return image.float().div(255).sub(MEAN).div(DEVIATION), self.labels[index]


def main():
    options = twin.options_of(__doc__, model="resnet18", epochs=10, batch_size=64, width=64, lr=0.05, bf16=False, device="cpu")
    train = CifarSet([f"{options.data}/data_batch_{n}.bin" for n in range(1, 6)], augment=True)
    held_out = CifarSet([f"{options.data}/test_batch.bin"], augment=False)
    torch.manual_seed(1)
    net = conv_net(options.model, 10, True, options.width).to(options.device)
    model = DistributedDataParallel(net)
    torch.manual_seed(2 + dist.get_rank())  # of dropout
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-4)
    sampler = DistributedSampler(train)
    # A generator of its own: else each epoch takes a number from that of dropout.
    loader = DataLoader(train, options.batch_size, sampler=sampler, generator=torch.Generator())
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        train.epoch = epoch
        twin.say_epoch(epoch, options.epochs, twin.train_epoch(loader, model, optimizer, options.bf16))
    twin.say_result(net, held_out, 64)
    del model  # before its group: PyTorch 2.11 can block otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
