"""MoCo with EqCo's loss: a queue of K negatives that count as alpha, with a momentum network for the keys.

python scripts/examples/queue_eqco.py [EPOCHS]
"""

import copy
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import ssl_bench

torch.manual_seed(0)
images = torch.tensor(load_digits().images * 15, dtype=torch.uint8)[:, None]  # [1797, 1, 8, 8]
make_views = ssl_bench.views("digits", size=8)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
momentum_network = copy.deepcopy(network).requires_grad_(False)
loss = ssl_bench.PairLoss("eqco", temperature=0.2, alpha=65536, negatives="queue", k=1024)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
    for batch in torch.randperm(len(images)).split(256):
        x1, x2 = make_views(images[batch])
        # The first argument has the anchors. The keys, the second one, enter the queue after the call.
        value, stats = loss(network(x1), momentum_network(x2), return_stats=True)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for key, query in zip(momentum_network.parameters(), network.parameters(), strict=True):
                key.lerp_(query, 1 - 0.99)
    print(f"epoch {epoch}: loss {value:.3f}, information {stats['information']:.2f} nats")
torch.save({"network": network.state_dict(), "loss": loss.state_dict()}, "queue_eqco.pt")  # the queue too
