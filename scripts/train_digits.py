"""Trains the small network that lowbit ships, and writes src/lowbit/data/digits_cnn.npz.

    python scripts/train_digits.py

Needs torch and scikit-learn. The data are scikit-learn's digits: 1,797 handwritten 8×8 images with
pixels 0 to 16; the last 360 are kept for testing. The forward pass in plain NumPy is
lowbit.data.digits_accuracy, and this script checks that both agree before it writes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from torch.nn import functional as F

import torch
from lowbit.data import digits_logits
from torch import nn

SEED = 0
TEST_IMAGES = 360
EPOCHS = 60
BATCH = 64
TARGET = Path(__file__).parents[1] / "src/lowbit/data/digits_cnn.npz"


class DigitsCnn(nn.Module):
    """conv 1→32, conv 32→64, 2×2 max pool, fully connected 1024→64→10; 85,066 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(pixels / 16))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def shifted(images: torch.Tensor) -> torch.Tensor:
    """The batch moved by up to one pixel each way: the only augmentation 8×8 images bear."""
    dx, dy = (int(v) for v in torch.randint(-1, 2, (2,)))
    return F.pad(images, (1, 1, 1, 1))[:, :, 1 + dy : 9 + dy, 1 + dx : 9 + dx]


def train(images: torch.Tensor, labels: torch.Tensor) -> DigitsCnn:
    torch.manual_seed(SEED)
    network = DigitsCnn()
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = F.cross_entropy(network(shifted(images[batch])), labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1:3}: loss {total / len(images):.4f}")
    return network.eval()


def main() -> None:
    # One thread and fixed seeds: the same file from the same versions.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    pixels = torch.from_numpy(images).float()[:, None]
    network = train(pixels[:-TEST_IMAGES], torch.from_numpy(labels[:-TEST_IMAGES]).long())

    arrays = {name: p.detach().numpy() for name, p in network.named_parameters()}
    arrays |= {"test_images": images[-TEST_IMAGES:], "test_labels": labels[-TEST_IMAGES:]}
    with torch.no_grad():
        expected = network(pixels[-TEST_IMAGES:]).numpy()
    np.testing.assert_allclose(digits_logits(arrays, images[-TEST_IMAGES:]), expected, rtol=1e-4, atol=1e-4)
    accuracy = float((expected.argmax(1) == labels[-TEST_IMAGES:]).mean())
    parameters = sum(p.numel() for p in network.parameters())
    print(f"{parameters:,} parameters, test accuracy {accuracy:.2%}")
    if accuracy < 0.97:
        raise SystemExit("the network is below 97 % and was not written")
    np.savez_compressed(TARGET, **arrays)
    print(f"wrote {TARGET.name}: {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
