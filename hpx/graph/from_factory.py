"""Call a user's function for its model: ``package.module:factory``.

1. The current folder is on the import path, as it is for ``python -m``.
2. The function is called without arguments and decides everything itself, the device too; a module
   object, or a module class, does as well.
3. What user code raises becomes one line that names the user's own file and line.
4. What user code prints goes to stderr: stdout is for data.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from hpx.errors import InputError, UsageError, did_you_mean
from hpx.graph.graph import ModuleGraph

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "check_is_module",
    "graph_from_factory",
    "model_and_inputs_from_factory",
    "model_from_factory",
    "named_object",
    "result_of_factory",
]

_LIBRARIES: Final = ("site-packages", "dist-packages", "<", sysconfig.get_path("stdlib"))


def graph_from_factory(text: str) -> ModuleGraph:
    """The graph of the model that ``package.module:factory`` gives.

    Raises:
        UsageError: There is no such module or name.
        InputError: The user's code raised, or gave no module.
    """
    model = model_from_factory(text)
    from hpx.graph.from_module import graph_from_module

    return graph_from_module(model, source=f"factory:{text}")


def model_from_factory(text: str) -> nn.Module:
    """The model that ``package.module:factory`` gives.

    Raises:
        UsageError: There is no such module or name.
        InputError: The user's code raised, or gave no module.
    """
    return model_and_inputs_from_factory(text)[0]


def model_and_inputs_from_factory(text: str) -> tuple[nn.Module, object]:
    """The model, and the example inputs of a factory that returns ``(model, inputs)``, or None.

    Raises:
        UsageError: There is no such module or name.
        InputError: The user's code raised, or gave no module.
    """
    from torch import nn

    result = result_of_factory(text)
    inputs: object = None
    if isinstance(result, (tuple, list)) and result:
        result, inputs = result[0], (result[1] if len(result) > 1 else None)
    if isinstance(result, nn.Module):
        return result, inputs
    kind = type(result).__name__
    raise InputError(
        f"{text} gives no model", why=f"it returned a {kind}", fix="return a torch.nn.Module"
    )


def result_of_factory(text: str) -> object:
    """What ``package.module:factory`` gives, whatever it is.

    Raises:
        UsageError: There is no such module or name.
        InputError: The user's code raised.
    """
    from torch import nn

    with _at_home():
        target = _named(text)
        # A module object is callable, too: that would be its forward.
        return target if isinstance(target, nn.Module) else _call(target, text)


def named_object(text: str) -> object:
    """What ``package.module:name`` names, not called.

    Raises:
        UsageError: There is no such module or name.
        InputError: Importing it raised.
    """
    with _at_home():
        return _named(text)


def _named(text: str) -> object:
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise UsageError(f"'{text}' names nothing", fix="write package.module:name")
    check_is_module(text)
    return _lookup(_import(module_name), name, module_name)


def check_is_module(text: str) -> None:
    """Refuse ``folder/file.py:name``, with how the same is written as ``package.module:name``.

    Raises:
        UsageError: It is the path of a program.
    """
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not file or path.suffix != ".py" or not path.is_file():
        return
    folder = path.parent
    if ".." in folder.parts or folder.is_absolute():
        fix = f"write {path.stem}:{name}, in the folder {folder}"
    else:
        fix = f"write {'.'.join((*folder.parts, path.stem))}:{name}"
    raise UsageError(f"{text} names a file, and a module is wanted", fix=fix)


@contextlib.contextmanager
def _at_home() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(ValueError):  # user code may have removed it
            sys.path.remove(here)


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise _from_user(error, f"importing {module_name} failed") from None
        raise UsageError(
            f"there is no module {missing}",
            fix=did_you_mean(missing, _modules_near(missing)) or "start hpx in the folder it is in",
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code can raise anything
        raise _from_user(error, f"importing {module_name} failed") from None


def _modules_near(missing: str) -> list[str]:
    """The modules beside the missing one."""
    package, _, _ = missing.rpartition(".")
    if not package:
        own = [str(Path.cwd())]
        return [found.name for found in pkgutil.iter_modules(own)]
    where = getattr(sys.modules.get(package), "__path__", [])
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules(where)]


def _lookup(module: ModuleType, name: str, module_name: str) -> object:
    target: object = module
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            public = [known for known in dir(target) if not known.startswith("_")]
            raise UsageError(
                f"{module_name} has no '{name}'", fix=did_you_mean(part, public) or None
            ) from None
        except Exception as error:  # noqa: BLE001 - user code can raise anything
            raise _from_user(error, f"looking up {module_name}:{name} failed") from None
    return target


def _call(target: object, text: str) -> object:
    if not callable(target):
        raise InputError(
            f"{text} is not callable",
            why=f"it is a {type(target).__name__}",
            fix="name a function that returns the model",
        )
    needed = _needed_arguments(target)
    if needed:
        raise InputError(
            f"{text} cannot be called without arguments",
            why=f"it needs {', '.join(needed)}",
            fix="write a function of no arguments that calls it",
        )
    try:
        return target()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code can raise anything
        raise _from_user(error, f"calling {text} failed") from None


def _needed_arguments(target: object) -> list[str]:
    assert callable(target)
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # some builtins tell no signature
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _from_user(error: BaseException, what: str) -> InputError:
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = f"{text[:297]}..."
    kind = type(error).__name__
    return InputError(what, where=_user_line(error), why=f"{kind}: {text}" if text else kind)


def _user_line(error: BaseException) -> str | None:
    """``file:line`` of the innermost frame that is the user's own."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_near(error.filename)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if frame.filename != __file__ and not any(part in frame.filename for part in _LIBRARIES)
    ]
    return f"{_near(own[-1].filename)}:{own[-1].lineno}" if own else None


def _near(filename: str) -> str:
    """The file as the user knows it: from the current folder, or its name alone."""
    path, here = Path(filename), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name
