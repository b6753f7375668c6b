"""`coli chat`: a conversation in the terminal.

For: people, and scripts that pipe questions in. It talks to the server that runs on this machine,
or starts one of its own for as long as it lasts. Answers go to stdout and nothing else does; what
is meant for a person goes to stderr. Not for: settings of an answer; the dashboard has those.

    coli chat                     ask and answer until Ctrl-D
    coli chat WHAT IS A DOG?      one answer
    coli chat Summarize: - < f    `-` stands for what is piped in
    cat questions | coli chat     one turn for each line

Ctrl-C stops an answer; what there is of it stays in the conversation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final, TextIO

import click

from colibri import logs, paths, settings
from colibri.cli import report, server
from colibri.cli.chat_client import Client, Model
from colibri.cli.options import settings_options
from colibri.errors import ColibriError, UsageError, printable
from colibri.settings import Settings

_HELP: Final = """\
/new           forget the conversation and begin another
/think on|off  let the model reason before it answers, if it can
/model         who answers; /model NAME: another one of the installed models
/help          this list
/quit          leave, as Ctrl-D does
\"\"\"            begins and ends a message of several lines
Ctrl-C         stops an answer"""
# How to get a model that chats, from a source tree and where the program is installed.
_FETCH: Final = "make model, then coli chat --model smollm2-135m-instruct"
_BRING: Final = (
    "coli chat --model FOLDER (of a GGUF file: coli convert FILE.gguf FOLDER, before that)"
)
_BLOCK: Final = '"""'
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


@click.command()
@click.argument("message", nargs=-1)
@click.option("--url", metavar="URL", help="Talk to the server at this address.")
@settings_options("model", "engine")
def chat(resolved: settings.Resolved, message: tuple[str, ...], url: str | None) -> int:
    """Chat in the terminal, with the server that runs here or one started for it.

    MESSAGE is asked once and the answer printed; a `-` in it stands for standard input.
    Without MESSAGE, questions are read line by line until the end of input.
    """
    with ExitStack() as stack:
        talk = Talk(resolved.settings, stack)
        talk.connect(url)
        if message:
            piped = sys.stdin.read() if "-" in message else ""
            talk.ask(" ".join(piped if word == "-" else word for word in message))
        elif sys.stdin.isatty():
            talk.greet()
            converse(talk)
        else:
            for line in sys.stdin:
                if line.strip():
                    talk.ask(line.strip())
    return 0


class Talk:
    """One conversation and the server it is held with."""

    def __init__(self, chosen: Settings, stack: ExitStack) -> None:
        self._chosen = chosen
        self._stack = stack
        self._own: ExitStack | None = None
        self._client: Client | None = None
        self.model = Model("")
        self.thinking = False
        self._messages: list[dict[str, str]] = []

    # ---- the server ----

    def connect(self, url: str | None) -> None:
        """Finds a server: the one at `url`, else the one on this machine if it serves the wanted
        model, else one of its own.
        """
        base = server.find(self._chosen, url)
        if base is None:
            self._start(self._chosen)
            return
        client = Client(base, self._chosen.api_key)
        self._client, self.model = client, client.model()

    def _start(self, chosen: Settings) -> None:
        """Starts a server that ends with this command."""
        import threading  # noqa: PLC0415 - only here

        from colibri.api.server import listen  # noqa: PLC0415 - heavy
        from colibri.cli.serve import model_folder, serving, wait_ready  # noqa: PLC0415

        folder = model_folder(chosen)
        logs.configure("error", None)
        _say(f"Loading {folder.name} ...")
        own = ExitStack()
        # Loopback only, and no key: nobody else is told the port.
        local = replace(chosen, host="127.0.0.1", port=0, api_key=None)
        listener = own.enter_context(listen(local.host, 0))
        try:
            running = own.enter_context(serving(local, folder, listener))
            wait_ready(running.engine, threading.Event())
            client = Client(running.url)
            self._client, self.model = client, client.model()
        except BaseException:
            own.close()
            raise
        self._chosen, self._own = chosen, own
        self._stack.callback(own.close)

    def change(self, name: str) -> None:
        """Serves another installed model, if the server is this command's own."""
        if self._own is None:
            raise UsageError(
                f"the server at {self._client.url if self._client else ''} keeps its model.",
                hint=f"End it, then: coli chat --model {name}",
            )
        from colibri.models import catalog  # noqa: PLC0415 - heavy

        catalog.resolve(name)
        self._own.close()
        self._start(replace(self._chosen, model=name))
        self.new()

    # ---- the conversation ----

    def new(self) -> None:
        """Forgets what was said."""
        self._messages.clear()

    def greet(self) -> None:
        """Says who answers, and what can be asked."""
        _say(f"{self.model.id} answers. /help lists what else you can type; Ctrl-D ends.")
        if self.model.note:
            _say(self.model.note)
        if self.model.examples:
            _say("Try:")
            for example in self.model.examples:
                _say(f"  {example}")
        if self.model.starter:
            _say(f"One that chats: {_FETCH if paths.in_source_tree() else _BRING}")

    def ask(self, text: str) -> None:
        """Sends a message and prints the answer as it arrives.

        Raises ColibriError for an answer that failed; its message is forgotten.
        """
        assert self._client is not None  # noqa: S101 - `connect` comes first
        self._messages.append({"role": "user", "content": text})
        pieces = self._client.answer(self.model.id, self._messages, thinking=self.thinking)
        printer = Printer(sys.stdout, sys.stderr)
        try:
            for piece in pieces:
                printer.show(piece.kind, piece.text)
                if piece.finish == "length":
                    printer.note("[the answer was cut: no room left; /new begins again]")
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            printer.note("[stopped]")
        except ColibriError:
            self._messages.pop()
            raise
        finally:
            pieces.close()
            printer.end()
        self._messages.append({"role": "assistant", "content": printer.answer})


class Printer:
    """Writes an answer as it arrives; `answer` is its visible text.

    Control characters of the model are left out: an answer must not move the cursor.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self.answer = ""
        self._thinking = self._open = False

    def show(self, kind: str, text: str) -> None:
        """Prints a piece: reasoning dimly on stderr, text on stdout."""
        clean = "".join(c for c in text if c.isprintable() or c in "\n\t")
        if kind == "reasoning":
            if not self._thinking and self._err.isatty():
                self._err.write(_DIM)
            self._thinking = True
            self._err.write(clean)
            self._err.flush()
        elif kind == "text":
            self._end_thinking()
            self.answer += text
            self._open = True
            self._out.write(clean)
            self._out.flush()

    def _end_thinking(self) -> None:
        if self._thinking:
            self._err.write((_PLAIN if self._err.isatty() else "") + "\n")
            self._err.flush()
            self._thinking = False

    def note(self, text: str) -> None:
        """A remark for the person, on a line of its own."""
        self.end()
        _say(text)

    def end(self) -> None:
        """Ends the line."""
        self._end_thinking()
        if self._open:
            self._out.write("\n")
            self._out.flush()
            self._open = False


def _say(text: str) -> None:
    click.echo(printable(text), err=True)


# ---- the terminal --------------------------------------------------------------------------------


def converse(talk: Talk) -> None:
    """Reads and answers until the person leaves."""
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - gives `input` editing and history
    for text in _typed():
        try:
            if text.startswith("/"):
                if _command(talk, text):
                    return
            else:
                talk.ask(text)
        except ColibriError as error:
            report(error)
    _say("")


def _typed() -> Iterator[str]:
    """Messages of a person, blank ones left out."""
    while True:
        try:
            text = input("> ")
            if text.lstrip().startswith(_BLOCK):
                text = _block(text.lstrip().removeprefix(_BLOCK))
        except EOFError:
            return
        except KeyboardInterrupt:
            _say("\nCtrl-D or /quit ends the chat.")
            continue
        if text.strip():
            yield text.strip()


def _block(first: str) -> str:
    lines = [first]
    while not lines[-1].rstrip().endswith(_BLOCK):
        lines.append(input(". "))
    return "\n".join(lines).strip().removesuffix(_BLOCK).strip()


def _command(talk: Talk, text: str) -> bool:
    """Does what a line with a slash says; True when the person leaves."""
    name, _, rest = text.partition(" ")
    rest = rest.strip()
    if name in ("/quit", "/exit", "/bye"):
        return True
    actions: dict[str, Callable[[], None]] = {
        "/help": lambda: click.echo(_HELP, err=True),
        "/new": lambda: _new(talk),
        "/think": lambda: _think(talk, rest),
        "/model": lambda: _model(talk, rest),
    }
    action = actions.get(name)
    if action is None:
        _say(f"{name} is no command; /help lists them.")
    else:
        action()
    return False


def _new(talk: Talk) -> None:
    talk.new()
    _say("A new conversation.")


def _think(talk: Talk, rest: str) -> None:
    if rest not in ("", "on", "off"):
        _say("/think is either on or off.")
        return
    talk.thinking = rest == "on" if rest else not talk.thinking
    _say(f"Thinking is {'on' if talk.thinking else 'off'}.")


def _model(talk: Talk, rest: str) -> None:
    if rest:
        talk.change(rest)
    _say(f"{talk.model.id} answers.")
