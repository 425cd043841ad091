"""Lightning's Trainer with its DDP strategy: with_lightning.py FOLDER"""

import sys

import lightning
import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from torch import nn
from torch.utils.data import DataLoader

import tiny


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = tiny.network()

    def training_step(self, batch, _):
        points, values = batch
        loss = nn.functional.mse_loss(self.net(points), values)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main():
    lightning.seed_everything(1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, default_root_dir=sys.argv[1],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False)
    # Otherwise Lightning would start the second process by itself.
    if not isinstance(trainer.strategy.cluster_environment, TorchElasticEnvironment):
        raise RuntimeError(f"Lightning sees {trainer.strategy.cluster_environment}")
    trainer.fit(Module(), DataLoader(tiny.data(), batch_size=tiny.BATCH, shuffle=True))
    if trainer.global_step != 12:
        raise RuntimeError(f"{trainer.global_step} steps: the ranks did not share the data")
    tiny.report(trainer.callback_metrics["loss"].item())


if __name__ == "__main__":
    main()
