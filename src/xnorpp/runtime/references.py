"""Objects of a user's own, named as `package.module:function`: one way to find them and one way to call them.

Every registry (data sets, networks) accepts such a name beside those it lists, so that nothing has to be
registered, or imported by hand, before a recipe can use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from xnorpp.runtime.registry import import_name


def is_reference(name: str) -> bool:
    """Whether `name` has the form `package.module:function`."""
    return ":" in name


def resolve(argument: str, reference: str) -> Callable[..., Any]:
    """Imports the function or class that `reference` names.

    The current folder is searched last, so that `mynet:build` finds `mynet.py` where a command is started.

    Args:
        argument: What the reference was given as, for the error message.
        reference: `package.module:function`; the part after the colon may have dots.

    Returns:
        The object, which can be called.

    Raises:
        ValueError: There is no such module or name, or it cannot be called.
    """
    module_name, _, path = reference.partition(":")
    if not module_name or not path:
        raise ValueError(f"`{argument}` (={reference!r}) must have the form package.module:function")
    found = import_name(argument, reference)
    if not callable(found):
        raise ValueError(f"`{argument}` (={reference!r}) must be a function or a class, and is not callable")
    return found  # type: ignore[no-any-return]


def call(
    function: Callable[..., Any], what: str, offered: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """Calls a user's function with those of the `offered` arguments that it names, and with all `options`.

    Args:
        function: The function or class.
        what: How the error messages name it.
        offered: Arguments that the function may take or leave.
        options: Arguments that the user asked for; each must be a parameter of the function.

    Raises:
        ValueError: The function has no parameter for one of the options, or needs one that is not given.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a class or function written in C
        return function(**options)
    named = [
        name for name, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in options:
        if name not in named and not takes_any:
            raise ValueError(f"{what} has no option `{name}`; it has {', '.join(named) or 'none'}")
    given = {**{name: value for name, value in offered.items() if name in named}, **options}
    missing = [
        name for name in named if name not in given and parameters[name].default is inspect.Parameter.empty
    ]
    if missing:
        raise ValueError(
            f"{what} needs `{missing[0]}`, which is not given; what it may take is {', '.join(offered)} and "
            "options with these names"
        )
    return function(**given)


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names that a function can be given as keywords; empty where they cannot be known."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
