"""kNN and a linear probe on any timm backbone and a folder of images, FOLDER/{train,val}/<class>/*.

python scripts/examples/knn_and_probe.py FOLDER resnet50.a1_in1k [FILE]
"""

import sys

import timm
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

import ssl_bench

folder, name, *files = sys.argv[1:]
device = "cuda" if torch.cuda.is_available() else "cpu"
# The weights are timm's, or those of a file, such as `ssl-bench export RUN` writes.
weights = {"checkpoint_path": files[0]} if files else {"pretrained": True}
backbone = timm.create_model(name, num_classes=0, **weights).to(device).eval()
transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=backbone))


@torch.no_grad()
def features(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [N, D] and labels [N] of a split."""
    loader = DataLoader(ImageFolder(f"{folder}/{split}", transform), batch_size=64, num_workers=0)
    found, labels = zip(*((backbone(images.to(device)).float(), labels) for images, labels in loader), strict=True)
    return torch.cat(found), torch.cat(labels).to(device)


train, train_labels = features("train")
test, test_labels = features("val")
neighbours = ssl_bench.knn(train, train_labels, test, test_labels, k=min(200, len(train)))
print(f"kNN {neighbours.top1:.1%}")
probe = ssl_bench.linear_probe(train, train_labels, test, test_labels)
print(f"linear probe {probe.top1:.1%}: {probe.chosen}")
