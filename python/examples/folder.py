"""A PyTorch loop over a folder of JPEG files: `DataLoader` beside `thalweg.torch.Loader`, both rates.

    python folder.py FOLDER [--size 224] [--batch-size 64] [--workers 4]

The folder has a subfolder for each class. Both loops train the same small network.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader

import thalweg.torch


def network(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


def train(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], classes: int, device: str) -> float:
    """Trains for an epoch, and returns the images of a second."""
    torch.manual_seed(0)
    model = network(classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, begin = 0, time.perf_counter()
    for x, labels in batches:
        loss = nn.functional.cross_entropy(model(x.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        images += len(labels)
    if device != "cpu":
        torch.cuda.synchronize()
    return images / (time.perf_counter() - begin)


def of_thalweg(loader: thalweg.torch.Loader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for batch in loader:
        yield batch.images, batch.labels


def of_torchvision(folder: str, size: int, batch_size: int, workers: int) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    from torchvision import datasets, transforms  # type: ignore[import-untyped, unused-ignore]

    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4),
            transforms.RandomGrayscale(0.1),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    data = datasets.ImageFolder(folder, steps)
    return DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=workers, pin_memory=torch.cuda.is_available())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    augment = thalweg.torch.Augment(options.size, seed=7)
    with thalweg.torch.Loader(
        options.folder, batch_size=options.batch_size, shuffle=True, transform=augment
    ) as loader:
        rate = train(of_thalweg(loader), len(loader.classes), device)
        print(f"thalweg.torch.Loader: {rate:.0f} images/s")
        classes = len(loader.classes)
    try:
        theirs = of_torchvision(options.folder, options.size, options.batch_size, options.workers)
    except ImportError:
        print("DataLoader: torchvision is not installed")
        return
    print(f"DataLoader, {options.workers} workers: {train(theirs, classes, device):.0f} images/s")


if __name__ == "__main__":
    main()
