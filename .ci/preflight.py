"""Say in one line what the build would miss on this machine."""

import os
import platform
import shlex
import shutil
import sys
import sysconfig


def missing():
    """Return what is missing, or None."""
    if sys.version_info < (3, 11):  # noqa: UP036 (this file is for those who have an older one)
        return (
            f"Python 3.11 or newer is needed and {sys.executable} is {platform.python_version()}; "
            "name another one: make PYTHON=python3.12"
        )
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"a C compiler is needed and {command[0]!r} was not found; install gcc or clang, or set CC"
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        return f"the headers of Python are needed and {header} is not there; install python3-dev"
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return "the module ensurepip is needed to make a virtual environment; install python3-venv"
    return None


if __name__ == "__main__":
    problem = missing()
    if problem is not None:
        sys.exit("qcore: " + problem)
