"""How networks of Keras start, for comparisons with codes in TensorFlow."""

from torch import nn


def start_as_keras(network: nn.Module) -> None:
    """Give convolutions and Linears new weights, and BNs new constants, in place: the defaults of Keras.

    Weights are uniform in +- sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010), where an input or output of a
    convolution counts once for each pixel of the kernel; there must be no biases. A BN adds 1e-3 to the variance, and
    its running averages keep 0.99 of their values in each forward.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.bias is None
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.eps, module.momentum = 1e-3, 0.01
