"""W&B's own variables, which are the defaults of ``tracking.*``: what is set on the command line comes before them."""

from omegaconf import ListConfig

from ssl_bench.errors import InvalidValue

MODES = {"online": "online", "run": "online", "shared": "online", "offline": "offline", "dryrun": "offline"}
MODES |= {"disabled": "off"}
YES, NO = ("true", "1", "yes", "on", "t", "y"), ("false", "0", "no", "off", "f", "n", "")


def mode(given: str, disabled: str) -> str:
    """``tracking.mode`` as ``WANDB_MODE`` and ``WANDB_DISABLED`` say.

    Raises:
        ConfigError: W&B has no such value.
    """
    if disabled.strip().lower() not in YES + NO:
        raise InvalidValue("WANDB_DISABLED", disabled, "true or false")
    if given.strip().lower() not in MODES:
        raise InvalidValue("WANDB_MODE", given, "online, offline or disabled")
    return "off" if disabled.strip().lower() in YES else MODES[given.strip().lower()]


def tags(text: str) -> ListConfig:
    """The words of ``WANDB_TAGS``, which stand between commas."""
    return ListConfig([word.strip() for word in text.split(",") if word.strip()])
