"""A loss in a loop of one's own: 1,797 digits of 8 x 8 pixels, half a minute on a CPU.

python scripts/examples/plain_loop.py [EPOCHS]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import ssl_bench

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images * 15, dtype=torch.uint8)[:, None]  # [1797, 1, 8, 8]
labels, train = torch.tensor(digits.target), 1347

backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
network = nn.Sequential(backbone, nn.Linear(128, 64))
make_views = ssl_bench.views("digits", size=8, scale=(0.6, 1.0))
loss = ssl_bench.PairLoss("dcl", temperature=0.2)  # any of the losses; loss.state_dict() has its state, if it has one
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)


def accuracy() -> float | None:
    features = backbone(images / 255).detach()
    return ssl_bench.knn(features[:train], labels[:train], features[train:], labels[train:], k=20).top1


print(f"kNN of the random network: {accuracy():.3f}")
for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
    for batch in torch.randperm(train).split(256):
        x1, x2 = make_views(images[batch])
        value, stats = loss(network(x1), network(x2), ids=batch, return_stats=True)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {value:.3f}, npc {stats['npc/mean']:.3f}, kNN {accuracy():.3f}")
