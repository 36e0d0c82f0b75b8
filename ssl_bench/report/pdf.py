"""A report as PDF, which a browser of this machine prints."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ssl_bench import files
from ssl_bench.errors import ConfigError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
PATIENCE = 300  # seconds
TIME = 30_000  # milliseconds of the page's own clock, which runs faster, for all plots


def write(page: str, path: Path) -> None:
    """Print a page.

    Raises:
        ConfigError: no browser is there, or it does not print.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ConfigError(
            f"--out={path}: there is no Chromium, Chrome or Edge that prints it; set --out to an .html file, which any "
            "browser prints to PDF"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "report.html"), Path(folder, "report.pdf")
        source.write_text(page)
        root = ["--no-sandbox"] if os.geteuid() == 0 else []  # a browser of root's has no sandbox
        flags = ["--headless", "--disable-gpu", f"--user-data-dir={folder}/profile", f"--virtual-time-budget={TIME}"]
        words = [browser, *root, *flags, "--no-pdf-header-footer", f"--print-to-pdf={made}", source.as_uri()]
        try:
            subprocess.run(words, capture_output=True, timeout=PATIENCE)
            content = made.read_bytes()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"--out={path}: {browser} does not print it; set --out to an .html file") from error
        files.write_bytes(path, content)
