"""Variational autoencoder: the generative control that contrastive methods are compared with.

    L = mean over the views and images of  -log p(x | z) + beta KL(q(z | x) || N(0, 1)),   z = m + s e,  e ~ N(0, 1)
    -log p(x | z) = sum over channels and pixels of  softplus(y) - x y,   y = decoder(z)
    KL = sum over latents of  (m^2 + s^2 - 1 - log s^2) / 2

Kingma and Welling, Auto-Encoding Variational Bayes (arXiv 1312.6114), equation 10, in nats per image. The paper that
has it as a control (Intriguing Properties of Contrastive Losses, arXiv 2011.02803, section 4.4) states only that its
size is that of the other models. Each view is its own target, so that as many images are seen as by the other methods.

A pixel in [0, 1] is the probability of a Bernoulli variable. Added bits are such probabilities already, and the
normalisation of a picture's values is undone. So one likelihood serves every dataset, and no variance has to be chosen.

A channel that is constant over an image, an added bit, is one variable of the image, not one per pixel: it counts once,
as the mean over the pixels. Counted at every pixel, 20 bits of an MNIST image are 10,900 nats and the digit is 200; the
digit is then not learned before all bits are. The paper does not state which of the two its control does.

Shapes: V views; B images on this rank; W ranks; L latents; C channels.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import global_mean, rank, world
from ssl_bench.errors import ConfigError, require
from ssl_bench.methods.base import Method, Outputs, StepResult
from ssl_bench.networks.encoder import Encoder, full_precision
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import joint_forward
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.objective.schedule import Progress


class GaussianEncoder(Encoder):
    """Backbone and a linear map to the mean and the log-variance of the latents; evaluators see the mean."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """[B, C, H, W] -> ``backbone`` [B, L], the mean, and ``projection`` [B, 2 L], mean and log-variance."""
        moments = self.head(self.backbone(x))
        return {"backbone": moments.chunk(2, 1)[0], "projection": moments}


class Decoder(nn.Module):
    """Transposed convolutions from a map of at most 4 x 4 to the logits of an image; each doubles the side.

    Args:
        latents: width of the latents.
        width: channels before the last convolution; twice as many for each halving of the side, at most 512.
        channels, size: channels and side of the image; if the side is not 2^n times the first one, the rest is cut off.
    """

    def __init__(self, latents: int, width: int, channels: int, size: int) -> None:
        super().__init__()
        stages = 1
        while (side := -(-size // 2**stages)) > 4:
            stages += 1
        widths = [min(512, width * 2**i) for i in reversed(range(stages))]
        layers: list[nn.Module] = [nn.Linear(latents, widths[0] * side * side, bias=False)]
        layers += [nn.Unflatten(1, (widths[0], side, side))]
        for inputs, outputs in pairwise([*widths, channels]):
            # A kernel of 4 reaches every pixel with equally many weights, so the stride leaves no pattern in the image.
            layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)]
            layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=len(layers) > 3 * stages)]
        self.layers, self.size = nn.Sequential(*layers), size

    def forward(self, z: Tensor) -> Tensor:  # [n, L] -> [n, C, size, size]
        return self.layers(z)[..., : self.size, : self.size]  # type: ignore[no-any-return]


class VAE(Method):
    """Variational autoencoder of both views: each is encoded, sampled once and decoded.

    If a batch is processed in chunks, the decoder still sees the whole batch at once.

    Args:
        backbone: the network that is evaluated, by the mean of the latents.
        head: linear, with two outputs for each latent.
        width, channels, size: as in :class:`Decoder`.
        mean, std: those of the views' normalisation, one value for each normalised channel.
        beta: weight of the divergence (Higgins et al. 2017); 1: the evidence lower bound.
        constants: whether channels beyond those of ``mean``, each constant over an image, count ``once`` or at every
            ``pixel``.
        seed: seed of the noise e, which is drawn for the global batch of each step.
        norm, groups: of the batch statistics, as in :class:`Method`.

    Raises:
        ConfigError: a head with an odd number of outputs, a width or size below 1, or a negative beta.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"uint8"})

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        width: int,
        channels: int,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        beta: float,
        constants: Literal["once", "pixel"],
        seed: int,
        norm: Literal["sync", "local"] = "sync",
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.shift: Tensor
        self.scale: Tensor
        self.counts: Tensor
        outputs = head.num_features
        if outputs % 2:
            raise ConfigError(f"head.out={outputs}: set head.out to an even number: a mean and a variance per latent")
        require(width >= 1, "width", width, "1 or more")
        require(size >= 1, "size", size, "1 or more")
        require(beta >= 0, "beta", beta, "0 or more")
        self.encoder, self.beta, self.norm, self.groups = GaussianEncoder(backbone, head), beta, norm, groups
        self.decoder = Decoder(outputs // 2, width, channels, size)
        added = channels - len(mean)  # constant channels, which are not normalised
        buffers = {"shift": [*mean] + [0.0] * added, "scale": [*std] + [1.0] * added}
        buffers["counts"] = [1.0] * len(mean) + [1.0 if constants == "pixel" else size**-2] * added
        for name, values in buffers.items():
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)  # [C, 1, 1]
        self.draws = StepGenerator("reparameterisation", seed)

    def networks(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]

    def trained_outputs(self, batch: Batch) -> Outputs:
        views = batch.views[:2]
        return {"moments": joint_forward(lambda x: self.encoder(x)["projection"], views, self.groups)}

    def momentum_outputs(self, batch: Batch) -> Outputs:
        """``target`` of each view, its pixels [V, B, C, H, W] in [0, 1]."""
        return {"target": torch.stack(batch.views[:2]) * self.scale + self.shift}

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        mean, log_variance = full_precision(outputs["moments"]).chunk(2, 2)  # [V, B, L] each
        z = mean + (log_variance / 2).exp() * self._noise(mean)
        # The moments have the format of the networks' products. In chunks the objective runs outside of autocast.
        dtype = outputs["moments"].dtype
        with torch.autocast(z.device.type, dtype, enabled=dtype in (torch.float16, torch.bfloat16)):
            logits = joint_forward(self.decoder, [*z], self.groups)  # [V, B, C, H, W]
        logits, target = full_precision(logits), outputs["target"]
        per_channel = (softplus(logits) - target * logits).sum((3, 4), keepdim=True)  # [V, B, C, 1, 1]
        reconstruction = (per_channel * self.counts).sum((2, 3, 4))  # [V, B]
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(2) / 2  # [V, B]
        loss = (reconstruction + self.beta * divergence).mean()
        if not diagnostics:
            return StepResult(loss, {})
        values = {"vae/reconstruction": reconstruction, "vae/kl": divergence}
        return StepResult(loss, {name: global_mean(value.detach().flatten()) for name, value in values.items()})

    def _noise(self, like: Tensor) -> Tensor:
        """Draw e for the global batch and take this rank's rows, [V, B, L]."""
        views, share, latents = like.shape
        generator = self.draws.generator(like.device)
        # Drawn in float32, so that a run in float64 has the same numbers.
        noise = torch.randn(views, share * world(), latents, generator=generator, device=like.device)
        return noise[:, rank() * share : (rank() + 1) * share].to(like.dtype)
