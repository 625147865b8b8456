#!/usr/bin/env python3
"""What `fsx run` shows on a terminal, and elsewhere.

Usage: live.py SCHEDULE.json; needs target/release/fsx. On a pseudo terminal the view must be drawn several times in
place, fit the width, and be gone at the end; without one there must be plain lines.
"""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

WIDTH = 72
FSX = os.path.join(os.path.dirname(__file__), "../../target/release/fsx")
PARTS = ["training ", "loss ", "step     |", "bubble   ", "engines  "]


def on_a_terminal(command):
    """Everything that a program writes to a terminal as its standard error."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=side)
    os.close(side)
    seen = b""
    while True:
        ready, _, _ = select.select([main], [], [], 0.2)
        try:
            data = os.read(main, 65536) if ready else b""
        except OSError:
            data = b""
        seen += data
        if not data and child.poll() is not None:
            return child.returncode, seen.decode()


def screen(text):
    """Lines of the screen after a text with the few commands that are used: up, clear line, return."""
    lines, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if piece == "\n":
            row += 1
        elif piece == "\r":
            column = 0
        elif piece.startswith("\x1b["):
            count = int(re.sub(r"\D", "", piece) or 1)
            if piece[-1] == "A":
                row = max(0, row - count)
            elif piece[-1] == "B":
                row += count
            elif piece[-1] == "K":
                lines[row] = ""
        else:
            for letter in piece:
                if column == WIDTH:
                    row, column = row + 1, 0
                while len(lines) <= row:
                    lines.append("")
                line = lines[row].ljust(column)
                lines[row] = line[:column] + letter + line[column + 1:]
                column += 1
        while len(lines) <= row:
            lines.append("")
    return lines


def main():
    command = [FSX, "run", sys.argv[1], "--no-evaluate", "--steps", "150"]
    status, seen = on_a_terminal(command)
    assert status == 0, (status, seen)
    drawn = seen.count("bubble   ")
    assert drawn >= 3, f"drawn {drawn} times:\n{seen}"
    last = seen.rindex("engines  ")
    during = [line.rstrip() for line in screen(seen[: seen.index("\x1b", last) if "\x1b" in seen[last:] else None])]
    for part in PARTS:
        assert sum(line.startswith(part) for line in during) == 1, f"`{part}` is not there once: {during}"
    assert all(len(line) <= WIDTH for line in during), during
    # The parts of a step are all of it, but for rounding.
    bubble = " ".join(during[during.index(next(line for line in during if line.startswith("bubble"))):])
    shares = [int(percent) for percent in re.findall(r"(\d+)%", bubble.split("engines")[0])]
    assert abs(sum(shares) - 100) <= 3, f"{shares} of {during}"
    left = screen(seen)
    # Notes may speak of training; the view's lines begin with it.
    assert not any(line.startswith(part) for line in left for part in PARTS), "the view stays:\n" + "\n".join(left)
    print("\n".join(line for line in during if line))
    print(f"drawn {drawn} times in place, and taken away")

    plain = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "\x1b" not in plain, plain
    quiet = subprocess.run([*command, "--quiet"], capture_output=True, text=True, check=True)
    assert not quiet.stderr and not quiet.stdout, quiet
    slow = subprocess.run([*command[:-1], "8", "--link", "20 Mbit/s, 50 us"], capture_output=True, text=True, check=True)
    lines = [line for line in slow.stderr.splitlines() if line.startswith("training ")]
    assert lines and "\x1b" not in slow.stderr, slow.stderr
    assert all(re.search(r"loss .* step .* tokens/s +eta .*compute \d+% exposed \d+%", line) for line in lines), lines
    print(lines[-1])


if __name__ == "__main__":
    main()
