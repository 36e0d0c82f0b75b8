"""The commands of ``ssl-bench``, one file each, with ``main(arguments) -> exit code``. ``cli.py`` is their table;
``arguments.py`` is how they read a command line."""
