"""The Trainer of Hugging Face transformers: with_transformers.py FOLDER

The model is a GPT-2 of two layers, built from a config.
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import tiny

VOCABULARY, LENGTH = 64, 16


class Sentences(Dataset):
    """Counting modulo the vocabulary, from random starts."""

    def __init__(self):
        starts = torch.randint(VOCABULARY, (64, 1), generator=torch.Generator().manual_seed(3))
        self.tokens = (starts + torch.arange(LENGTH)) % VOCABULARY

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir=sys.argv[1], use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=8,
        num_train_epochs=2, learning_rate=1e-3, seed=1, logging_steps=2, save_strategy="no",
        report_to="none", disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
    result = trainer.train()
    if result.global_step != 8:  # 64 sentences, 2 ranks of 8, 2 epochs
        raise RuntimeError(f"{result.global_step} steps: the ranks did not share the data")
    tiny.report(result.training_loss)


if __name__ == "__main__":
    main()
