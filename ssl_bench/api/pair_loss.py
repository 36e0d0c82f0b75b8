"""Every loss of the package with any negatives and any temperature, for the vectors of a loop of one's own.

    loss = PairLoss("dcl", temperature=0.1)
    value = loss(z1, z2)                         # [B, D] each, of any length
    moco = PairLoss("eqco", temperature=0.2, alpha=65536, negatives="queue", k=65536)
    value = moco(q, k)                           # the anchors, and keys of a momentum network

Shapes: V pairs of views, each an anchor view and the view of its positive; B images on this rank; D width; W ranks.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ssl_bench.api import options as conf
from ssl_bench.api.arguments import integers
from ssl_bench.config.build import find_target
from ssl_bench.distributed import active, alone, rank, world
from ssl_bench.errors import ConfigError, require
from ssl_bench.methods.contrastive import MissingNeed, apply_loss, check_needs
from ssl_bench.networks.encoder import full_precision, unit
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.diagnostics import diagnose
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import MemoryBank, Negatives, Queue
from ssl_bench.objective.positives import Positives
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.objective.schedule import Progress
from ssl_bench.objective.similarity import Name
from ssl_bench.objective.temperature import Fixed, Learned, MACLa, MACLb, Temperature

WITHOUT_PROGRESS = (Fixed, MACLa, MACLb, Learned)  # exactly these; any other temperature may depend on the progress
# Where a run is told to set its framework or its views.
REMEDIES = {"both_views": "set negatives=cross_view", "two_views": "set symmetric=true and positives=view"}


class PairLoss(nn.Module):
    """A contrastive loss between the views of a batch.

    With a process group, the negatives and the batch statistics are those of all ranks. The gradient that
    DistributedDataParallel averages is then exactly that of the mean over the global batch, for any number of ranks.
    All ranks must have batches of one size. Inside ``torch.autocast`` the loss is computed in float32.

    A queue or a memory bank takes in the keys of the batch at the end of every call in training mode with gradients
    enabled. In the same calls ``sogclr`` and ``isogclr`` remember its images, and the random draws of ``random_k``,
    ``swd`` and ``sigreg`` advance; other calls leave them as they are and repeat them. So keep this module outside of
    activation checkpointing, which calls it twice; the network may be checkpointed. The state is in the ``state_dict``.

    The parameters of ``temperature="learned"`` and of ``siglip`` belong into the optimiser without weight decay and, on
    several ranks, into a module that DistributedDataParallel wraps.

    Args:
        loss: a name in ``conf/loss``, such as dcl, or infonce for NT-Xent (``loss="?"`` is refused with all names), or
            a :class:`ssl_bench.objective.loss.Loss`.
        temperature: tau > 0; or fixed, linear, cosine, macl_a, macl_b or learned; or a mapping with one of them as
            ``name`` and its arguments (``{"name": "cosine", "tau": 0.5, "final": 0.1}``); or a
            :class:`ssl_bench.objective.temperature.Temperature`. A fixed one of 0.2 by default.
        negatives: in_batch (both views of all other images: 2 B W - 2), cross_view or own_view (the view of the
            positive or of the anchor only: B W - 1), random_k (k of them), queue (of k keys), memory_bank (of
            ``instances`` images) or none; or a :class:`ssl_bench.objective.negatives.Negatives`. ``auto`` is what the
            loss ``needs``: cross_view for relic, own_view for dhel, none if it needs no negatives, else in_batch.
        positives: view (the other view), nearest (the nearest of the last keys to it) or label (also the candidates of
            the anchor's class); or a mapping as for ``temperature`` (``{"name": "nearest", "k": 1024}``); or a
            :class:`ssl_bench.objective.positives.Positives`. ``auto`` is label for sincere and supcon, else view.
        symmetric: both views are anchors, or only the first. None: only the first for a queue, whose second view is of
            a momentum network, and else both.
        reduction: ``mean`` or ``sum`` over all anchors of this rank, or ``none``.
        gather: contrast with the images of all ranks; if False, with those of this rank only. A queue is then the
            rank's own, and must not be in a DistributedDataParallel that broadcasts buffers.
        cosines: ``dense`` stores all cosines; ``tiled`` computes them in panels that are never stored; ``auto`` is
            tiled where they are many, and dense inside ``torch.compile``.
        similarity: the function of the cosine that is s in s / tau: ``cosine``, ``arctanh`` or ``student``
            (:mod:`ssl_bench.objective.similarity`).
        seed: the seed of a queue's first keys and of all draws, the same on all ranks.
        options: arguments of the loss (``alpha`` of eqco, ``sigma`` of dclw, ``weight``, ...) and of the negatives
            (``k``, ``instances``, ...). Their defaults are those of conf/. The width ``dim`` of the keys is taken from
            the first vectors unless it is given.

    Raises:
        ConfigError: an unknown option, a value that cannot be used, or parts that do not fit together.
    """

    negatives: Negatives | None
    positives: Positives | None

    def __init__(
        self,
        loss: str | Loss,
        temperature: float | str | Mapping[str, Any] | Temperature = "fixed",
        negatives: str | Negatives = "auto",
        *,
        positives: str | Mapping[str, Any] | Positives = "auto",
        symmetric: bool | None = None,
        reduction: Literal["mean", "sum", "none"] = "mean",
        gather: bool = True,
        cosines: Literal["auto", "dense", "tiled"] = "auto",
        similarity: Name = "cosine",
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        given = {"reduction": reduction, "cosines": cosines, "similarity": similarity}
        conf.checked(PairLoss.__init__, symmetric=symmetric, gather=gather, seed=seed, **given)
        self.reduction, self.gather, self.cosines, self.similarity = reduction, gather, cosines, similarity
        loss_node = _node("loss", loss, Loss, seed)
        if negatives == "auto":
            negatives = _suited(find_target(loss_node, "loss") if loss_node else type(loss))
        node = _node("negatives", negatives, Negatives, seed)
        of_loss, of_negatives = conf.arguments(loss_node, "loss"), conf.arguments(node, "negatives")
        conf.check_known(options, sorted({*of_loss, *of_negatives} - {"seed"}), f"loss={loss} negatives={negatives}")
        self.loss: Loss = conf.make(loss_node, "loss", _only(options, of_loss)) if isinstance(loss, str) else loss
        scale: Any = {"name": "fixed", "tau": temperature} if isinstance(temperature, int | float) else temperature
        scale_node = _node("temperature", scale, Temperature, seed)
        self.temperature: Temperature = conf.make(scale_node, "temperature") if scale_node else scale
        if positives == "auto":
            positives = "label" if "labels" in self.loss.needs else "view"
        pulled = _node("positives", positives, Positives, seed)
        self._nodes = {"negatives": node | _only(options, of_negatives), "positives": pulled}
        nodes = {group: node for group, node in self._nodes.items() if node}
        sized = {g for g, node in nodes.items() if "dim" in conf.arguments(node, g) and "dim" not in node}
        made = {g: conf.make(node, g, {"dim": 1} if g in sized else {}) for g, node in nodes.items()}
        parts = {"negatives": negatives, "positives": positives} | made
        assert isinstance(parts["negatives"], Negatives) and isinstance(parts["positives"], Positives)
        self.symmetric = not isinstance(parts["negatives"], Queue) if symmetric is None else symmetric
        of_views = frozenset({"both_views", "two_views"} if self.symmetric else {"both_views"})
        every: dict[str, Any] = parts | {"loss": self.loss, "temperature": self.temperature}
        try:
            check_needs(of_views, every, similarity, remedies=REMEDIES)
        except MissingNeed as missing:
            raise ConfigError(f"{type(every[missing.group]).__name__} {missing}") from missing
        for group, part in parts.items():
            self.register_module(group, None if group in sized else part)
        self._labelled = "labels" in parts["positives"].gives

    def forward(
        self,
        z1: Tensor | Sequence[Tensor],
        z2: Tensor | None = None,
        ids: Any = None,
        progress: Progress | None = None,
        return_stats: bool = False,
        labels: Any = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a batch.

        Args:
            z1, z2: two views [B, D] of the same images, of any length; zeros have no gradient. Or ``z1`` is a list of
                two or more views: those after the second are further positives of the first two and are no anchors
                themselves.
            ids: [B] integers, the number of each image: two rows with one number are never negatives of each other.
                None: all images of all ranks are different. A memory bank, sogclr and isogclr need them. A tensor on
                any device or an array of numpy, as ``labels`` are.
            progress: share of the training that is done, in [0, 1], for a scheduled temperature or number of negatives.
            return_stats: also return the diagnostics of :mod:`ssl_bench.objective.diagnostics` as scalars, over the
                anchors of all ranks, which must all ask for them: ``npc/mean`` (the multiplier of InfoNCE's gradient),
                ``information`` (a lower bound on the mutual information of the views, in nats),
                ``negatives/effective`` and more.
            labels: [B] integers, the class of each image, -1 if it is not known; for ``positives="label"``.

        Returns:
            The mean or the sum over the anchors [], or the loss of each anchor [V, B]: V is 2, or 1 with
            ``symmetric=False``. With ``return_stats``, that and a dict.

        Raises:
            ConfigError: shapes or sizes that do not fit.
        """
        z = torch.stack([*z1] if z2 is None else [z1, z2])  # type: ignore[list-item]  # [views, B, D]
        self._check_views(z)
        images, device = z.shape[1], z.device
        labels = self._read_labels(labels, images, device)
        ranks = contextlib.nullcontext() if self.gather or not active() else alone()
        with torch.autocast(device.type, enabled=False), ranks:
            ids = self._read_ids(ids, images, device)
            if world() > 1:
                from ssl_bench.api.equal_batches import check_equal  # it imports torch's compiler, which takes seconds

                check_equal(images, device)
            e = replace(self._embedded(full_precision(z), ids), labels=labels)
            negatives, positives = self._sized(e.q)
            self._check_count(negatives.count(images * world()), images)
            self._check_different(ids, negatives)
            progress = self._checked(progress, negatives)
            tiled = {"auto": False if torch.compiler.is_compiling() else None, "dense": False, "tiled": True}
            form, bank = (tiled[self.cosines], self.similarity), _kept(negatives, negatives.bank(e))
            parts = self.loss, self.temperature, e, bank, (negatives, positives)
            values, contrast, tau = apply_loss(*parts, progress, *form)  # [V, B]
            stats = diagnose(contrast, tau, self.loss) if return_stats else {}
            if self.training and torch.is_grad_enabled():
                for part in (negatives, positives):
                    part.update(e.detach(), progress)
                self._advance(e, contrast, tau)
        value = values if self.reduction == "none" else values.mean() if self.reduction == "mean" else values.sum()
        return (value, stats) if return_stats else value

    # ---- checks

    def _check_views(self, z: Tensor) -> None:
        fits = z.ndim == 3 and len(z) >= 2 and z.numel() > 0 and z.is_floating_point()
        require(fits, "views", f"{z.dtype} {list(z.shape)}", "two or more views, each of floating-point numbers [B, D]")
        if len(z) > 2 and "two_views" in self.loss.needs:
            raise ConfigError(f"{type(self.loss).__name__} {MissingNeed('loss', 'no_more_views', 'give two views')}")

    def _read_ids(self, ids: Any, images: int, device: torch.device) -> Tensor:
        """The numbers of the images on their device; those of images of which something is kept must be in range."""
        bank = self.negatives.memory if isinstance(self.negatives, MemoryBank) else None
        instances = self.loss.instances or (bank.instances if bank else self._nodes["negatives"].get("instances"))
        remedy = f"the numbers of the images, from 0 to {(instances or 0) - 1}: something is kept for each"
        if ids is None:
            require(instances is None, "ids", None, remedy)
            return torch.arange(images, device=device) + rank() * images
        ids = integers("ids", ids, images)
        # To look at those on a GPU would make the host wait for it.
        if instances is not None and ids.device.type == "cpu" and not torch.compiler.is_compiling():
            least, most = map(int, ids.aminmax())
            require(least >= 0 and most < instances, "ids", f"{least} to {most}", remedy)
        return ids.to(device)

    def _read_labels(self, labels: Any, images: int, device: torch.device) -> Tensor | None:
        remedy = "the class of each image, -1 if it is not known" if self._labelled else "null, or positives=label"
        require(self._labelled == (labels is not None), "labels", None if labels is None else "given", remedy)
        return integers("labels", labels, images).to(device) if self._labelled else None

    def _check_count(self, count: int, images: int) -> None:
        few = count < 1 if "negatives" in self.loss.needs else "two_views" in self.loss.needs and images * world() < 2
        require(not few, "batch size", images, "2 or more: the loss compares the images of a batch")

    def _check_different(self, ids: Tensor, negatives: Negatives) -> None:
        """Refuse one number for all images; to look at those on a GPU would make the host wait for it."""
        seen = ids.device.type == "cpu" and len(ids) > 1 and not torch.compiler.is_compiling()
        if seen and world() == 1 and not isinstance(negatives, Queue | MemoryBank):
            require(bool((ids != ids[0]).any()), "ids", "one number for all images", "the number of each image")

    def _checked(self, progress: Progress | None, negatives: Negatives) -> Progress:
        if progress is None:
            scheduled = negatives if negatives.varies else self.temperature
            remedy = f"the share of the training that is done, from 0 to 1: {type(scheduled).__name__} depends on it"
            require(type(scheduled) in WITHOUT_PROGRESS, "progress", progress, remedy)
            return 0.0
        require(isinstance(progress, Tensor) or 0 <= progress <= 1, "progress", progress, "a number from 0 to 1")
        return progress

    # ---- parts of a call

    def _embedded(self, z: Tensor, ids: Tensor) -> Embedded:
        """Anchors and positives from the views [views, B, D]."""
        units, anchors = unit(z), 2 if self.symmetric else 1
        pairs = [(a, p) for a in range(anchors) for p in range(len(z)) if p != a]
        q, p, raw = (torch.stack([x[pair[i]] for pair in pairs]) for x, i in ((units, 0), (units, 1), (z, 0)))
        # The keys of two symmetric views are the positives, and those of one direction's queue are its positives too.
        with_keys = len(z) > 2 if self.symmetric else self.negatives and "both_views" in self.negatives.needs
        return Embedded(q, p, raw, ids, q if with_keys else None)

    def _sized(self, vectors: Tensor) -> tuple[Negatives, Positives]:
        """Negatives and positives, made for the width of the first vectors [..., D] if they were not yet.

        What they keep has the type and the device of the vectors, also after a ``half()`` of a module around this one.
        """
        width = next((stored.shape[1] for stored in self.buffers() if stored.ndim == 2), vectors.shape[-1])
        remedy = f"vectors of width {width}, which the stored keys have"
        require(width == vectors.shape[-1], "views", f"[B, {vectors.shape[-1]}]", remedy)
        for group, node in self._nodes.items():
            part, wanted = getattr(self, group), (vectors.device, vectors.dtype)
            if part is None or any(x.is_floating_point() and (x.device, x.dtype) != wanted for x in part.buffers()):
                with torch.inference_mode(False):  # it is written to later, outside of this mode
                    part = conf.make(node, group, {"dim": vectors.shape[-1]}) if part is None else part
                    setattr(self, group, part.to(*wanted).train(self.training))
        assert self.negatives is not None and self.positives is not None
        return self.negatives, self.positives

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Make negatives and positives before their state is read, with the width that the state has."""
        for name, value in state_dict.items():
            group = name.removeprefix(prefix).partition(".")[0]
            if group in self._nodes and getattr(self, group) is None and getattr(value, "ndim", 0) == 2:
                self._sized(value)
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _advance(self, e: Embedded, contrast: Contrast, tau: Tensor) -> None:
        self.loss.update(e.ids, self.loss.for_update(contrast, tau))
        for module in self.modules():
            if isinstance(module, StepGenerator):
                module.step += 1


def _suited(kind: Any) -> str:
    """The negatives that a loss is made for."""
    made_for = {"aligned": "cross_view", "own_view": "own_view", "negatives": "in_batch"}
    return next((negatives for need, negatives in made_for.items() if need in kind.needs), "none")


def _node(group: str, chosen: Any, kind: type, seed: int) -> conf.Node:
    """The node of an option given by its name, or by a mapping with ``name`` and arguments; empty for an object."""
    if isinstance(chosen, kind):
        return {}
    arguments = dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}
    name = arguments.pop("name", None)
    node = conf.node(group, name)
    names = conf.arguments(node, group)
    conf.check_known(arguments, names, f"{group}={name}")
    return node | _only({"seed": seed}, names) | arguments


def _only(given: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}


def _kept(negatives: Negatives, bank: Bank | None) -> Bank | None:
    """The candidates, copied where they are stored: the backward pass needs them after the store was updated."""
    if bank is None or not isinstance(negatives, Queue | MemoryBank) or not torch.is_grad_enabled():
        return bank
    return Bank(bank.keys.clone(), bank.ids)
