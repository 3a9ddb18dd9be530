# SPDX-License-Identifier: Apache-2.0
"""Trains with the Trainer of transformers, without internet access: hf_trainer.py KIND UNTIL.

KIND is "trainer", or "trainer-padded" for sentences of different lengths, which are padded to the
longest one of their batch. UNTIL is a number of steps, or a file that ends the training once it
exists. The model is small; its weights and the tokens are random. Prints each step's losses as
hexadecimal floats.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

TOKENS = 512
POSITIONS = 32
ACCUMULATED = 2


class Sentences(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random tokens; the labels are the input tokens.

    varying: give each sentence 8 to POSITIONS tokens; otherwise each has POSITIONS tokens.
    """

    def __init__(self, varying: bool) -> None:
        self._tokens = [
            torch.randint(TOKENS, (int(torch.randint(8, POSITIONS + 1, ())),))
            if varying
            else torch.randint(TOKENS, (POSITIONS,))
            for _ in range(64)
        ]

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


def padded(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pad the sentences of a batch to the longest one."""
    pad = torch.nn.utils.rnn.pad_sequence
    tokens = [one["input_ids"] for one in batch]
    return {
        "input_ids": pad(tokens, batch_first=True),
        "attention_mask": pad([torch.ones_like(one) for one in tokens], batch_first=True),
        "labels": pad(tokens, batch_first=True, padding_value=-100),
    }


class Stop(TrainerCallback):
    """Ends the training at a step, or once a file exists."""

    def __init__(self, until: str) -> None:
        self._until = until

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        known = self._until.isdigit()
        reached = state.global_step >= int(self._until) if known else os.path.exists(self._until)
        control.should_training_stop = reached


class LossPrinter(Trainer):
    """Prints the losses of a step's accumulated batches on one line."""

    def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
        loss = super().training_step(*arguments, **options)
        self._parts = [*getattr(self, "_parts", []), loss.item().hex()]
        if len(self._parts) == ACCUMULATED:
            sys.stdout.write(" ".join(self._parts) + "\n")
            sys.stdout.flush()
            self._parts = []
        return loss


def main() -> None:
    _, kind, until = sys.argv
    torch.set_num_threads(1)
    set_seed(1)
    config = GPT2Config(
        vocab_size=TOKENS,
        n_positions=POSITIONS,
        n_embd=128,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=1_000_000,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=ACCUMULATED,
            lr_scheduler_type="constant",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = LossPrinter(
            model=GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=Sentences(kind == "trainer-padded"),
            data_collator=padded,
            callbacks=[Stop(until)],
        )
        trainer.remove_callback(_printer(trainer))
        trainer.train()


def _printer(trainer: Trainer) -> Any:
    """The Trainer's own callback, which prints a summary after this script's losses unless it is
    removed."""
    callbacks = trainer.callback_handler.callbacks
    return next(one for one in callbacks if type(one).__name__ == "PrinterCallback")


if __name__ == "__main__":
    main()
