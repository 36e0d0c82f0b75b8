"""The two ways in which a command fails, each told to the user in one sentence."""


class ConfigError(Exception):
    """The configuration or the data it names cannot be used: exit code 2, and nothing was touched."""


class RunError(Exception):
    """A run that had started failed: exit code 1, and the reason is kept in its directory."""
