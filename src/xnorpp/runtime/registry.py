"""Named objects that users extend: a registry, `package.module:Name`, and `name(key=value)`.

It lives in the lowest layer because every registry (scales, quantizers, networks, data sets) uses it; it
imports only the standard library.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from xnorpp.runtime.choices import nearest_first

T = TypeVar("T")


_imports_allowed = ContextVar("imports_allowed", default=True)


@contextmanager
def without_imports() -> Iterator[None]:
    """While names come from a file that someone else may have made: `package.module:Name` then only finds
    what the program has imported itself, so that a file cannot make it run code."""
    token = _imports_allowed.set(False)
    try:
        yield
    finally:
        _imports_allowed.reset(token)


def imports_allowed() -> bool:
    """False inside of `without_imports`."""
    return _imports_allowed.get()


def import_name(argument: str, text: str) -> Any:
    """The object that `package.module:name` stands for.

    The working directory is searched last, so that a recipe can name a file that lies beside it.

    Args:
        argument: What the text was given as, for the error message.
        text: Such as `"mypackage.layers:MyScale"`.

    Raises:
        ValueError: There is no such module, or nothing of that name in it, or imports are not allowed.
    """
    module_name, _, attribute = text.partition(":")
    if not imports_allowed() and module_name not in sys.modules:
        raise ValueError(
            f"`{argument}` (={text!r}) comes from a file and names code that is not imported; import "
            f"{module_name} before you read the file, if you trust it"
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module exists, and something that it imports is missing
        raise ValueError(
            f"`{argument}` (={text!r}) must name an importable module before the colon; there is no module "
            f"{error.name!r} on the Python path"
        ) from None
    try:
        for part in attribute.split("."):
            value = getattr(value, part)
    except AttributeError:
        raise ValueError(
            f"`{argument}` (={text!r}) must name something in {module_name}, which has no {attribute!r}"
        ) from None
    return value


def split_call(argument: str, text: str) -> tuple[str, dict[str, Any]]:
    """`"name(key=value)"` as the name and its keyword arguments, which must be plain literals.

    Raises:
        ValueError: The text in parentheses is not a list of `key=literal`.
    """
    name, bracket, rest = text.partition("(")
    if not bracket:
        return text, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise SyntaxError
        return name, {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except (SyntaxError, ValueError):
        raise ValueError(f"`{argument}` (={text!r}) must look like name or name(key=value)") from None


class Registry(Mapping[str, T], Generic[T]):
    """Objects by name. As a mapping it holds what was registered; `find` also takes `package.module:Name`.

    Args:
        argument: What the names are given as, for error messages: "scale", "quantizer", "model".
        check: Called with an object that is to be registered or was imported; raises `TypeError` if it is
            unfit.
        origin: Where an object was defined, as `module:name`.
    """

    def __init__(
        self,
        argument: str,
        check: Callable[[T], None] | None = None,
        origin: Callable[[T], str] | None = None,
    ) -> None:
        self.argument = argument
        self._check = check
        self._origin = origin or origin_of
        self._entries: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: str, entry: T) -> None:
        """Register an object under a name.

        Raises:
            ValueError: The name is taken by another object or has a character that specifications use.
            TypeError: The object is unfit.
        """
        if not name or set(name) & set(":( )"):
            raise ValueError(f"`name` (={name!r}) must not be empty or contain a colon, space or parenthesis")
        if self._check is not None:
            self._check(entry)
        present = self._entries.get(name)
        if present is not None and self._origin(present) != self._origin(entry):
            raise ValueError(
                f"`name` (={name!r}) must be new; it is already registered for {self._origin(present)}"
            )
        self._entries[name] = entry  # the same object again is a module that was loaded a second time

    def find(self, name: str, argument: str | None = None) -> T:
        """The object of a registered name or of `package.module:Name`.

        Raises:
            ValueError: There is none; the message lists the registered names, the most similar first.
        """
        argument = argument or self.argument
        if name in self._entries:
            return self._entries[name]
        if is_reference(name):
            entry: T = import_name(argument, name)
            if self._check is not None:
                try:
                    self._check(entry)
                except TypeError as error:
                    raise ValueError(f"`{argument}` (={name!r}) cannot be used: {error}") from None
            return entry
        listed = ", ".join(repr(known) for known in nearest_first(name, self._entries))
        raise ValueError(
            f"`{argument}` (={name!r}) must be one of {listed}, or 'package.module:Name' for one of your own"
        )

    def name_of(self, entry: T) -> str:
        """The registered name of an object, or `package.module:Name`."""
        for name, known in self._entries.items():
            if known is entry:
                return name
        return self._origin(entry)


def origin_of(entry: Any) -> str:
    """`module:name` of a class or function."""
    return f"{getattr(entry, '__module__', '?')}:{getattr(entry, '__qualname__', repr(entry))}"


def is_reference(name: str) -> bool:
    """Whether `name` has the form `package.module:function`."""
    return isinstance(name, str) and ":" in name


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
