"""A config as one module sees it: some of its numbers are those of one rank.

The config object of a model is shared by all its modules, by who makes caches and masks, and by who
saves it, so it is never edited. A module whose code reads a head count from it gets one of these in
its place: it has the counts of one rank, and everything else is read from the config, and written
to it, at the time.
"""

from __future__ import annotations

from typing import Any

from hpx.heads import CONFIG

__all__ = ["LocalConfig", "set_integer", "whole_config"]


class LocalConfig:
    """A view of a config in which some numbers differ.

    Args:
        whole: The config.
        counts: The numbers that differ, by name.
    """

    def __init__(self, whole: object, counts: dict[str, int]) -> None:
        # Found before anything is looked up in the config; copies and pickles are as of any object.
        self.__dict__.update(counts, _whole=whole)

    def __getattr__(self, name: str) -> Any:
        if name == "_whole" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._whole, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__:
            raise AttributeError(f"{name} is that of one rank here: set it on the model's config")
        setattr(self._whole, name, value)

    def __repr__(self) -> str:
        counts = {name: value for name, value in self.__dict__.items() if name != "_whole"}
        return f"LocalConfig({', '.join(f'{name}={value}' for name, value in counts.items())})"


def whole_config(config: object) -> object:
    """The config behind what a module has."""
    return config._whole if isinstance(config, LocalConfig) else config


def set_integer(module: object, name: str, value: int) -> tuple[str, object]:
    """What to set on a module so that an integer of it has a value: ``(attribute, new value)``.

    Args:
        module: The module.
        name: The integer, ``num_heads``, or one that its code reads in its config,
            ``config.num_heads``.
        value: The value.
    """
    if not name.startswith(CONFIG):
        return name, value
    config = vars(module)["config"]
    own = vars(config) if isinstance(config, LocalConfig) else {}
    counts = {key: number for key, number in own.items() if key != "_whole"}
    return "config", LocalConfig(whole_config(config), {**counts, name.removeprefix(CONFIG): value})
