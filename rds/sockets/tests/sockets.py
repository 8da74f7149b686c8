"""A program with reliable datagram sockets, which knows nothing of who provides them."""

import errno
import os
import selectors
import socket
import subprocess
import threading
import time

HERE, THERE = ("127.0.25.1", 4000), ("127.0.25.2", 4001)


def made(at):
    made = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET)
    made.bind(at)
    return made


with made(HERE) as a, made(THERE) as b, selectors.DefaultSelector() as selector:
    assert a.family == socket.AF_RDS and a.getsockname() == HERE
    a.connect(THERE)
    selector.register(b, selectors.EVENT_READ)
    assert selector.select(0) == []
    a.send(b"sent")
    assert len(selector.select(20)) == 1
    assert b.recvfrom(100) == (b"sent", HERE)
    assert selector.select(0) == []
    a.sendmsg([b"in ", b"parts"])
    assert b.recvmsg(2) == (b"in", [], socket.MSG_TRUNC, HERE)

    # One timeout expires, and one does not.
    b.settimeout(0.05)
    began = time.monotonic()
    try:
        b.recv(1)
        raise SystemExit("nothing was sent")
    except socket.timeout:
        assert time.monotonic() - began >= 0.05
    threading.Timer(0.02, a.send, [b"late"]).start()
    b.settimeout(20)
    assert b.recv(100) == b"late"

    # A child may do anything with its descriptors without affecting its parent.
    assert subprocess.run(["true"]).returncode == 0
    child = os.fork()
    if child == 0:
        try:
            b.sendto(b"x", HERE)
        except OSError as error:
            os._exit(error.errno)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EBADF
    a.send(b"still")
    assert b.recv(100) == b"still"
print("done")
