#!/usr/bin/env python3
"""Writes what COMMAND INFO and COMMAND DOCS say of the commands that the server has, as redis-server 7.0 says it.

Usage: command-metadata.py PORT DIR, with Debian's redis-server on PORT. The commands are those that DIR/names.txt lists, one
a line, subcommands as `config|get`. Values are written one a line: a type of RESP3 and a number or text.
"""
import pathlib
import socket
import sys

port, out = int(sys.argv[1]), pathlib.Path(sys.argv[2])
names = (out / "names.txt").read_text().split()
stream = socket.create_connection(("127.0.0.1", port)).makefile("rwb")


class Pairs(list):
    pass


class Set(list):
    pass


class Plain(str):
    pass


def read():
    line = stream.readline()[:-2].decode()
    kind, rest = line[0], line[1:]
    if kind == "+":
        return Plain(rest)
    if kind == "$":
        text = stream.read(int(rest) + 2)[:-2].decode()
        assert "\n" not in text
        return text
    if kind == ":":
        return int(rest)
    if kind == "*":
        return [read() for _ in range(int(rest))]
    if kind == "~":
        return Set(read() for _ in range(int(rest)))
    if kind == "%":
        return Pairs((read(), read()) for _ in range(int(rest)))
    raise SystemExit(f"unexpected: {line}")


def ask(*words):
    stream.write(b"*%d\r\n" % len(words))
    for word in words:
        stream.write(b"$%d\r\n%s\r\n" % (len(word), word.encode()))
    stream.flush()
    return read()


def write(file, value):
    if isinstance(value, Pairs):
        file.write(f"%{len(value)}\n")
        for pair in value:
            for side in pair:
                write(file, side)
    elif isinstance(value, list):
        file.write(f"{'~' if isinstance(value, Set) else '*'}{len(value)}\n")
        for element in value:
            write(file, element)
    elif isinstance(value, int):
        file.write(f":{value}\n")
    else:
        file.write(f"{'+' if isinstance(value, Plain) else '$'}{value}\n")


def served(name):
    return name in names


ask("HELLO", "3")
with open(out / "info.txt", "w") as info, open(out / "docs.txt", "w") as docs:
    for name in names:
        (of,) = ask("COMMAND", "INFO", name)
        of[9] = type(of[9])(sub for sub in of[9] if served(sub[0]))
        info.write(f"={name}\n")
        write(info, of)
        ((_, of),) = ask("COMMAND", "DOCS", name)
        for at, (field, value) in enumerate(of):
            if field == "subcommands":
                of[at] = (field, Pairs(pair for pair in value if served(pair[0])))
        docs.write(f"={name}\n")
        write(docs, of)
