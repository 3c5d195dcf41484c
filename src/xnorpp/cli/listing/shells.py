"""The shapes of the commands as completion scripts for bash, zsh and fish."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import xnorpp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xnorpp.cli.listing.completion import Shape, Value

HEAD = f"# Completion for xnorpp {xnorpp.__version__}, written by `xnorpp completion SHELL`."

# The first words are the commands; each command's case sets what it takes. `valued` lists the options that
# take a value, so that values are not counted as positional arguments.
_BASH = """\
_xnorpp_reply() {  # words, and -f for files or -d for folders too
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(compgen -W "$1" -- "$current"; [ -z "$2" ] || compgen "$2" -- "$current")
    [ -z "$2" ] || compopt -o filenames 2> /dev/null
}

_xnorpp_value() {  # command, and an option or the number of a positional argument
    case "$1 $2" in
%(values)s
    *) COMPREPLY=() ;;
    esac
}

_xnorpp() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
    local name="${COMP_WORDS[1]}" first=2 flags="" valued="" last="" position=0 i
    if [ "$COMP_CWORD" -eq 1 ]; then
        _xnorpp_reply %(commands)s
        return
    fi
    if [ "$name" = help ]; then
        _xnorpp_reply %(commands)s
        return
    fi
    if [ "$name" = paper ] && [ "$COMP_CWORD" -gt 2 ]; then
        name="paper ${COMP_WORDS[2]}"
        first=3
    fi
    case "$name" in
%(cases)s
    *) return ;;
    esac
    case " $valued " in
    *" $previous "*) _xnorpp_value "$name" "$previous"; return ;;
    esac
    case "$current" in
    -*) _xnorpp_reply "$flags"; return ;;
    esac
    for ((i = first; i < COMP_CWORD; i++)); do
        case " $valued " in
        *" ${COMP_WORDS[i]} "*) i=$((i + 1)); continue ;;
        esac
        case "${COMP_WORDS[i]}" in
        -?*) ;;
        *) position=$((position + 1)) ;;
        esac
    done
    case "$last" in
    *+) [ "$position" -lt "${last%%+}" ] || position="${last%%+}" ;;
    esac
    _xnorpp_value "$name" "$position"
}

complete -F _xnorpp xnorpp
"""


def bash(shapes: Sequence[Shape]) -> str:
    """A script for bash 3.2 or newer."""
    commands = [shape.name for shape in shapes if " " not in shape.name]
    cases, values = [], []
    for shape in shapes:
        flags = [flag for option in shape.options for flag in option.flags]
        valued = [flag for option in shape.options if option.value is not None for flag in option.flags]
        last = f"{len(shape.positions) - 1}{'+' * shape.positions[-1].repeated}" if shape.positions else ""
        cases.append(
            f"    {shlex.quote(shape.name)}) flags={shlex.quote(' '.join(flags))}"
            f" valued={shlex.quote(' '.join(valued))} last={shlex.quote(last)} ;;"
        )
        rows: dict[str, list[str]] = {}
        for option in shape.options:
            if option.value is not None and option.value != ((), ""):
                places = [f"{shape.name} {flag}" for flag in option.flags]
                rows.setdefault(_bash_value(option.value), []).extend(places)
        for number, position in enumerate(shape.positions):
            rows.setdefault(_bash_value(position.value), []).append(f"{shape.name} {number}")
        values += [
            f"    {' | '.join(map(shlex.quote, places))}) {reply} ;;" for reply, places in rows.items()
        ]
    filled = _BASH % {
        "values": "\n".join(values),
        "cases": "\n".join(cases),
        "commands": shlex.quote(" ".join([*commands, "help", "--help", "--version"])),
    }
    return f"{HEAD}\n\n{filled}"


def _bash_value(value: Value) -> str:
    paths = {"files": " -f", "folders": " -d", "": ' ""'}[value.paths]
    return f"_xnorpp_reply {shlex.quote(' '.join(value.words))}{paths}"


def zsh(shapes: Sequence[Shape]) -> str:
    """A function for a folder of `$fpath`; it can be evaluated too."""
    lines = ["#compdef xnorpp", HEAD, "", "_xnorpp() {", "    local context state state_descr line"]
    lines += ["    typeset -A opt_args", "    local -a commands", "    commands=("]
    tops = [shape for shape in shapes if " " not in shape.name]
    lines += [f"        {shlex.quote(f'{shape.name}:{shape.summary}')}" for shape in tops]
    lines += ["    )", "    _arguments -C '1: :->command' '*:: :->arguments'", "    case $state in"]
    lines += ["    command) _describe command commands ;;", "    arguments)", "        case $words[1] in"]
    lines.append("        help) _describe command commands ;;")
    for shape in tops:
        inner = [one for one in shapes if one.name.startswith(shape.name + " ")]
        if inner:
            lines += [f"        {shape.name})", "            if (( CURRENT > 2 )); then"]
            lines += ["                shift words; (( CURRENT-- ))", "                case $words[1] in"]
            for one in inner:
                lines.append(f"                {one.name.partition(' ')[2]}) {_zsh_arguments(one)} ;;")
            lines += ["                esac", "            else", f"                {_zsh_arguments(shape)}"]
            lines += ["            fi ;;"]
        else:
            lines.append(f"        {shape.name}) {_zsh_arguments(shape)} ;;")
    lines += ["        esac ;;", "    esac", "}", ""]
    lines += ['if [ "$funcstack[1]" = "_xnorpp" ]; then', '    _xnorpp "$@"', "else"]
    lines += ["    compdef _xnorpp xnorpp", "fi"]
    return "\n".join(lines) + "\n"


def _zsh_arguments(shape: Shape) -> str:
    parts = ["_arguments -S"]
    for option in shape.options:
        text = option.help.replace("[", "\\[").replace("]", "\\]").replace(":", "\\:").replace("%", "%%")
        ending = (
            "" if option.value is None else f":{option.metavar}:{_zsh_value(option.value)}".replace("=", " ")
        )
        for flag in option.flags:
            parts.append(shlex.quote(f"{'*' * option.repeated}{flag}[{text}]{ending}"))
    for number, position in enumerate(shape.positions, 1):
        place = "*" if position.repeated else str(number)
        parts.append(shlex.quote(f"{place}:{position.metavar}:{_zsh_value(position.value)}"))
    return " ".join(parts)


def _zsh_value(value: Value) -> str:
    words = f"({' '.join(value.words)})" if value.words else ""
    paths = {"files": "_files", "folders": "_files -/", "": ""}[value.paths]
    if words and paths:
        return f"_alternative 'names:name:{words}' 'files:file:{paths}'"
    return words or paths or " "


def fish(shapes: Sequence[Shape]) -> str:
    """Lines for a file of fish's completion folder."""
    tops = [shape for shape in shapes if " " not in shape.name]
    names = " ".join(shape.name for shape in tops)
    lines = [HEAD, "", "complete -c xnorpp -f"]
    none = shlex.quote(f"not __fish_seen_subcommand_from {names} help")
    for shape in tops:
        lines.append(f"complete -c xnorpp -n {none} -a {shape.name} -d {_fish(shape.summary)}")
    lines.append(f"complete -c xnorpp -n '__fish_seen_subcommand_from help' -a {_fish(names)}")
    for shape in shapes:
        command, _, inner = shape.name.partition(" ")
        seen = f"__fish_seen_subcommand_from {command}"
        if inner:
            seen += f"; and __fish_seen_subcommand_from {inner}"
        for option in shape.options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
            )
            line = f"complete -c xnorpp -n {_fish(seen)} {flags} -d {_fish(option.help)}"
            lines.append(line + ("" if option.value is None else f" -x{_fish_value(option.value)}"))
        for position in shape.positions:
            if values := _fish_value(position.value):
                lines.append(f"complete -c xnorpp -n {_fish(seen)}{values}")
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_value(value: Value) -> str:
    paths = {"files": "(__fish_complete_path)", "folders": "(__fish_complete_directories)", "": ""}
    words = " ".join(filter(None, [*value.words, paths[value.paths]]))
    return f" -a {_fish(words)}" if words else ""
