"""A net (--model) on photographs in folders, with DistributedDataParallel, Gloo and Pillow.

    torchrun --standalone --nproc-per-node=2 examples/pytorch/image_folder.py --data /tmp/imagenette

build/bin/image_folder does the same. Needs Pillow beside PyTorch.
"""
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import twin
from conv_nets import conv_net

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class PhotoSet(Dataset):
    def __init__(self, root, side, augment):
        self.classes = sorted(path.name for path in Path(root).iterdir() if path.is_dir())
        self.files = [(path, label) for label, name in enumerate(self.classes) for path in sorted(Path(root, name).rglob("*"))
                      if path.suffix.lower() in (".jpg", ".jpeg", ".png")]
        self.side, self.augment, self.epoch = side, augment, 0

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        with Image.open(path) as image:
            # Decodes less, as ours does.
            image.draft("RGB", (2 * self.side,) * 2 if self.augment else (self.side,) * 2)
            image = image.convert("RGB")
        chance = random.Random(self.epoch << 32 | index)
        part = min(image.size) * (0.5 + 0.5 * chance.random() if self.augment else 1)
        left, top = ((length - part) * (chance.random() if self.augment else 0.5) for length in image.size)
        image = image.resize((self.side, self.side), Image.BILINEAR, box=(left, top, left + part, top + part))
        if self.augment and chance.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(self.side, self.side, 3)
        return pixels.permute(2, 0, 1).float().div(255).sub(MEAN).div(DEVIATION), label


def main():
    options = twin.options_of(__doc__, model="resnet18", epochs=10, batch_size=32, workers=2, side=128, width=64, lr=0.05, read_only=False)
    train = PhotoSet(f"{options.data}/train", options.side, augment=True)
    held_out = PhotoSet(f"{options.data}/val", options.side, augment=False)
    sampler = DistributedSampler(train)
    # A generator of its own: else each epoch takes a number from that of dropout.
    loader = DataLoader(train, options.batch_size, sampler=sampler, num_workers=options.workers, generator=torch.Generator())
    if options.read_only:
        start = time.monotonic()
        images = sum(len(labels) for _, labels in loader)
        twin.say(f"images={images} images_per_second={images / (time.monotonic() - start):.0f}")
        return dist.destroy_process_group()
    torch.manual_seed(1)
    net = conv_net(options.model, len(train.classes), False, options.width)
    model = DistributedDataParallel(net)
    torch.manual_seed(2 + dist.get_rank())  # of dropout
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-4)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        train.epoch = epoch
        twin.say_epoch(epoch, options.epochs, twin.train_epoch(loader, model, optimizer))
    twin.say_result(net, held_out, 32)
    del model  # before its group: PyTorch 2.11 can block otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
