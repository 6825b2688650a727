"""The command ``sightline``: its verbs, and where errors become lines and exit codes.

Verbs import what they need when they run, so that ``sightline --help`` needs no torch.
"""

from __future__ import annotations

import traceback
from typing import Annotated, Any

import typer

from sightline import __version__
from sightline.cli.bulk import bulk, watch
from sightline.cli.caption import caption, explain
from sightline.cli.console import close_output, complain, is_first_process, set_up
from sightline.cli.doctor import doctor
from sightline.cli.evaluate import calibrate, evaluate, score
from sightline.cli.models import export, load, models, push
from sightline.cli.reproduce import reproduce
from sightline.cli.search import search
from sightline.cli.serve import serve
from sightline.cli.train import features, pseudo_caption, recipes, retrieval, train
from sightline.errors import ConfigError, SightlineError, missing_extra
from sightline.io.files import cause, printable
from sightline.io.interrupts import EXIT_CODE, interrupted

app = typer.Typer(
    name="sightline",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (
    caption, bulk, watch, search, explain, serve, train, features, pseudo_caption, reproduce, evaluate, score,
    calibrate, models, load, push, export, doctor,
):  # fmt: skip
    app.command(context_settings={"allow_extra_args": verb is explain})(verb)  # which says what it takes
app.add_typer(recipes)
app.add_typer(retrieval)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and every warning.")] = False,
    install_man: Annotated[bool, typer.Option("--install-man", help="Install the manual page for `man`.")] = False,
    show_man: Annotated[bool, typer.Option("--show-man", help="Print the manual page, in roff.")] = False,
) -> None:
    """Caption photos, and show which regions each word attends to."""
    if install_man or show_man:
        from sightline.cli.manual import install_manual, manual_page

        shown = manual_page(context) if show_man else f"manual page installed in {printable(install_manual(context))}"
        typer.echo(shown)
        raise typer.Exit
    if version:
        typer.echo(f"sightline {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def run(arguments: list[str], debug: bool = False) -> int:
    """Carry out one command line; returns the exit code."""
    set_up(debug)
    command = typer.main.get_command(app)
    code, failed = 0, None
    try:
        _check_none_empty(arguments)
        with command.make_context("sightline", [*arguments]) as context:
            command.invoke(context)
    except typer.Exit as finished:
        code = finished.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_CODE
    except Exception as error:
        if debug:
            traceback.print_exc()
        failed = None if interrupted() else error
        code = EXIT_CODE
    if code == EXIT_CODE and failed is None:
        complain("interrupted")
    unwritten = close_output()
    if isinstance(unwritten, BrokenPipeError) or (isinstance(failed, BrokenPipeError) and failed.filename is None):
        return 141  # what a shell reports of any program whose reader went away
    if unwritten and (failed is None or isinstance(failed, OSError)):
        failed = SightlineError(f"cannot write to standard output: {unwritten.strerror}; send it elsewhere")
    return _report(failed, arguments) if failed else code


def _check_none_empty(arguments: list[str]) -> None:
    """As a path, an empty argument would mean the folder where one is, with all that is in it."""
    if "" in arguments:
        before = " ".join(["sightline", *arguments[: arguments.index("")]])
        raise ConfigError(
            f"the argument after `{printable(before)}` is empty, as from a shell variable without a value: "
            "write what is meant, or . for the folder where you are"
        )


def _report(error: Exception, arguments: list[str]) -> int:
    if isinstance(error, ModuleNotFoundError):  # of an extra
        error = missing_extra(error) or error
    if isinstance(error, ConfigError):
        if is_first_process():  # under torchrun every process finds the same fault
            complain(f"error: {error}")
        return 2
    if isinstance(error, SightlineError):
        complain(f"error: {error}")
        return 1
    if message := getattr(error, "format_message", None):  # wrong usage, found by the parser
        complain(f"error: {message()} (see `{_verb(arguments)} --help`)")
        return 2
    name = type(error).__name__
    if isinstance(error, OSError) and error.filename is not None:  # the system's answer about a file
        complain(f"error: {printable(error.filename)}: {cause(error)}")
        return 1
    complain(f"error: {name}: {error}; this should not happen: run it again with --debug and report what it prints")
    return 1


def _verb(arguments: list[str]) -> str:
    """The command that was called, such as "sightline retrieval build". Not every error of the parser knows it."""
    command: Any = typer.main.get_command(app)
    path = ["sightline"]
    for argument in arguments:
        command = getattr(command, "commands", {}).get(argument)
        if command is None:
            break
        path.append(argument)
    return " ".join(path)
